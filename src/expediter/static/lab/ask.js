// Questions to the server this page came from.

export class Refused extends Error {}

// On a gateway's admin port questions need its token, which the dashboard has asked for.
const token = sessionStorage.getItem("expediter-admin-token");
const headers = token ? { authorization: `Bearer ${token}` } : {};

export async function ask(name, values, signal) {
  const response = await fetch(`/api/lab/${name}?${new URLSearchParams(values)}`, { signal, headers });
  if (response.ok) return response.json();
  const answer = await response.json().catch(() => ({}));
  throw new Refused(answer.error?.message ?? `the lab's server failed (${response.status}); its log says why`);
}

// Asks one question at a time. What is asked meanwhile waits, and only the last of it is asked:
// a slider may move faster than answers come.
export class Latest {
  constructor(run) {
    this.run = run;
    this.waiting = null;
    this.busy = false;
  }

  async ask(question) {
    this.waiting = question;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.waiting !== null) {
        const next = this.waiting;
        this.waiting = null;
        await this.run(next);
      }
    } finally {
      this.busy = false;
    }
  }
}
