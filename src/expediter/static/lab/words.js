// What the page says, in plain words.

export const WORDS = [
  ["Token", "A piece of text, about three quarters of a word. Models read and write tokens."],
  ["Prefill", "Reading the prompt. The longer the part that was never read before, the longer it takes."],
  ["Decode", "Writing the answer, one token after another."],
  ["KV cache", "The notes a model takes as it reads. Notes on a beginning depend on that beginning only, so another prompt that begins the same can use them."],
  ["Hit", "A token whose notes were already there, so it need not be read again."],
  ["Replica, worker", "One copy of the model with its own GPUs and its own notes. A fleet has many."],
  ["Router", "Decides which replica gets a request."],
  ["TTFT", "Time to first token: how long somebody waits until an answer begins. p50 is the middle one, p95 and p99 are those of the unlucky."],
];

export const POLICIES = {
  random: ["Random", "Anywhere. Fair, and it forgets who has the notes."],
  "round-robin": ["Round robin", "Each replica in turn."],
  sticky: ["Sticky", "A conversation always goes to the same replica, whatever happens there."],
  "cache-aware": ["Cache-aware", "Where most of the prompt is cached, unless that replica did over 1.2 times the mean work lately."],
  "longest-match": ["Longest match", "Where most of the prompt is cached, without any guard."],
  "least-loaded": ["Least loaded", "Where the least work is outstanding."],
  "power-of-two": ["Power of two", "Draws two replicas, takes the less loaded."],
  sglang: ["SGLang", "SGLang's rule: the best match, but the fewest requests once queues are uneven."],
  dynamo: ["Dynamo", "NVIDIA Dynamo's rule: blocks to prefill plus blocks that decode there."],
  preble: ["Preble E2", "Exploits a match if it saves more than it misses, else goes where it costs the least."],
  slo: ["SLO (ours)", "Predicts what the request would cost itself and others at each replica. The gateway's default."],
};

export const LINKS = {
  nvlink4: "NVLink 4 (H100)", nvlink3: "NVLink 3 (A100)", "nvlink-nvl": "NVLink (H100 NVL)",
  pcie5: "PCIe 5 x16", pcie4: "PCIe 4 x16", nic400: "400 Gb/s card", nic200: "200 Gb/s card",
  nic100: "100 Gb/s card", nvme4: "NVMe disk", wifi: "Wi-Fi",
};
