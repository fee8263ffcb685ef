"""Common English words, each of which most tokenizers have as one token."""

WORDS = tuple(
    """
    the a this that these those some many few each every most other another any all both no of
    in on at by for with from to into over under after before between through during without
    about against and or but so because while when where if as than until although since is was
    are were has had can could may might will would should does did seems became remains we they
    it he she you people someone everyone nobody house river garden window table road city
    village school market bridge station harbor forest mountain valley island water fire stone
    wood paper glass iron copper cotton bread salt sugar coffee tea milk fruit apple orange
    lemon morning evening night winter summer spring autumn hour minute week month year century
    moment season machine engine signal number letter question answer reason story picture sound
    color shape line circle corner teacher doctor farmer sailor driver writer painter student
    child friend neighbor stranger visitor worker small large old new young early late quick
    slow bright dark warm cold quiet loud heavy light long short high low deep wide narrow open
    closed empty full simple common rare strong weak clear plain gentle sharp soft hard walk
    carry hold keep leave find lose build break close read write listen speak think know learn
    teach remember forget begin finish follow lead turn move stand wait travel return arrive
    grow fall rise change watch measure compare choose gather share offer accept refuse promise
    explain describe repeat consider decide always never often sometimes rarely soon again
    already still almost quite rather perhaps together alone here there away back outside inside
    nearby above below forward slowly quickly carefully easily nearly plan rule order group part
    piece side end middle top bottom front edge center distance direction weight price trade
    message map book page word name list record report result example problem method system
    field tree leaf root seed flower grass bird horse sheep fish dog cat cloud rain snow wind
    storm sun moon star hand face voice heart mind eye ear foot step door wall roof floor room
    kitchen street boat train wheel first second third last next same different several enough
    half double single power heat speed space time place world country border coast land ground
    air music dance song game play work rest sleep dream meal dinner visit journey lesson
    meeting idea thought hope fear doubt truth cause effect chance choice habit skill care trust
    gives takes makes brings sends shows tells asks helps needs wants likes means uses holds
    runs given taken made brought sent shown told asked helped needed wanted liked meant used
    held one two three four five six seven eight nine ten hundred thousand north south east west
    left right red green blue yellow white black brown gray silver golden
    """.split()  # noqa: SIM905
)
