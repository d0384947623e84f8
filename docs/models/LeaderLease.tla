----------------------------- MODULE LeaderLease -----------------------------
(* Who may answer from memory?                                                  *)
(*                                                                              *)
(* A leader of a shard answers reads and keep-alives without asking anybody,    *)
(* as long as a quorum has promised it to elect nobody else: its lease. This    *)
(* module says by which rules such promises are given, counted, overlooked and  *)
(* remembered, and asks whether two replicas can ever both believe that they    *)
(* may answer. README.md says which function of the code each action stands     *)
(* for, and what is assumed of openraft.                                        *)
(*                                                                              *)
(* The rules below are those of the code. A name in `Faults` takes one of them  *)
(* away; mutants.toml lists which invariant must then fall.                     *)
(*                                                                              *)
(* Time is ticks that are left: promises, acknowledgements and hold-backs count *)
(* down and stop at 0, so that runs may be as long as they like. A process that *)
(* is paused is one that takes no step for a while. Messages are delayed for    *)
(* ever or lost, votes and orders also repeated. Pre-vote is left out, since it *)
(* only ever prevents an election.                                              *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
  Nodes,        \* the voters
  First,        \* the one that leads at the beginning, in term 1
  None,         \* no replica
  MaxTerm,      \* no election goes beyond this term
  MaxCrashes,   \* how many processes end during a run; each may be started again
  MaxOrders,    \* how many orders to take over are given
  MaxSuspends,  \* how many processes are suspended with their machine
  Lease,        \* the lease, in ticks, by one release
  OtherLease,   \* ... and by another, where a cluster runs two
  AddressTicks, \* how long a refusal counts, where it is about an address and not about a process
  Ordinary,     \* whether replicas stand in ordinary elections; off only to search elsewhere more deeply
  StandsAgain,  \* whether survivors that split a vote stand again
  MaxWrong,     \* how many witnesses take processes for dead that live
  Late,         \* what a leader notices late: "withdrawal" that it leads no more, "record" openraft's acknowledgements
  Instead,      \* remedies that were thought of and do not suffice: "votes-by-own-record", "every-voter-looks"
  Faults        \* rules that are taken away, see below

(* Each fault, as the rule that it takes away. *)
VoteIsTied     == "vote-untied" \notin Faults        \* a leader that has saved another vote answers no more
RetryLooks     == "retry-unchecked" \notin Faults    \* who stands again does so only when it has promised nothing
LeaseIsAgreed  == "lease-by-release" \notin Faults   \* a leader counts no longer lease than the voter promised
HoldIsKept     == "hold-back-by-release" \notin Faults \* a restarted replica holds back for what it promised before
NamesProcess   == "death-by-address" \notin Faults   \* evidence of a death names the process
NeedsWitnesses == "death-one-witness" \notin Faults  \* a death counts when a quorum can have seen it
HoldsBack      == "early-vote" \notin Faults         \* a restarted replica holds back at all
FromSending    == "lease-from-answer" \notin Faults  \* a lease counts from the sending, not from the answer
GivesAway      == "serves-after-order" \notin Faults \* a leader stops answering before it orders another to lead
ClockGoesOn    == "monotonic-lease" \notin Faults    \* the clock of leases goes on while a machine is suspended
RefusesVotes   == "vote-free" \notin Faults          \* openraft: a leader with fresh acknowledgements refuses votes

ByOwnRecord  == "votes-by-own-record" \in Instead
VotersLook   == "every-voter-looks" \in Instead
WithdrawsLate == "withdrawal" \in Late
RecordsLate   == "record" \in Late

VARIABLES
  up,        \* whether the process runs
  suspended, \* the nodes whose machine is suspended
  run,       \* the number of the replica's latest process
  len,       \* the lease by that process's release
  wrong,     \* the witnesses that are wrong
  (* On disk. *)
  vote,      \* term, whose vote, and whether that one is known to lead
  log,       \* the term of the last entry
  kept,      \* the longest lease that a process of this replica may have promised
  (* A voter's memory. *)
  lease,     \* how long it grants its vote to nobody else
  hold,      \* how long it neither votes nor stands after a start
  cand,      \* whether it is a candidate
  armed,     \* whether it has looked, and is about to stand again
  seen,      \* only with "death-by-address": how long a refusal at an address still counts
  lrun,      \* which process sent the appends of the latest term; 0 when it does not know
  (* A leader's memory. *)
  lead,      \* the term that openraft leads in, or 0
  serve,     \* the term in which leadership is published, or 0
  given,     \* the term up to which leadership was given away
  own,       \* our record of acknowledgements: how long each still counts
  oterm,     \* ... and of which term it is
  raft,      \* openraft's record
  (* Messages. *)
  net,       \* an append or its answer, one round trip at a time for each pair
  reqs,      \* requests for votes
  grants,    \* votes
  orders,    \* orders to take over
  (* What happened so far. *)
  wrote,     \* the highest term in which anything was committed
  crashes, suspends

process == <<up, suspended, run, len, wrong>>
disk    == <<vote, log, kept>>
voter   == <<lease, hold, cand, armed, seen, lrun>>
leader  == <<lead, serve, given, own, oterm, raft>>
sent    == <<net, reqs, grants, orders>>
past    == <<wrote, crashes, suspends>>
vars    == <<process, disk, voter, leader, sent, past>>

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
Less(a) == IF a > 0 THEN a - 1 ELSE 0
Zero == [n \in Nodes |-> 0]
NoMsg == [phase |-> "none", term |-> 0, left |-> 0]
IsQuorum(s) == 2 * Cardinality(s) > Cardinality(Nodes)
Acts(n) == up[n] /\ n \notin suspended

(* One leads in term 1, everybody has its log, and every promise has run out.   *)
Init ==
  /\ up = [n \in Nodes |-> TRUE] /\ suspended = {}
  /\ run = [n \in Nodes |-> 1]
  /\ len \in [Nodes -> {Lease, OtherLease}] /\ kept = len
  /\ wrong \in {w \in SUBSET Nodes : Cardinality(w) = MaxWrong}
  /\ vote = [n \in Nodes |-> [term |-> 1, who |-> First, ok |-> TRUE]]
  /\ log = [n \in Nodes |-> 1]
  /\ lease = Zero /\ hold = Zero
  /\ cand = [n \in Nodes |-> FALSE] /\ armed = [n \in Nodes |-> FALSE]
  /\ seen = [n \in Nodes |-> Zero] /\ lrun = [n \in Nodes |-> 1]
  /\ lead = [n \in Nodes |-> IF n = First THEN 1 ELSE 0] /\ serve = lead /\ given = Zero
  /\ own = [n \in Nodes |-> Zero] /\ oterm = lead /\ raft = [n \in Nodes |-> Zero]
  /\ net = [n \in Nodes |-> [m \in Nodes |-> NoMsg]]
  /\ reqs = {} /\ grants = {} /\ orders = {}
  /\ wrote = 1 /\ crashes = 0 /\ suspends = 0

(* Would a read or a keep-alive be answered from memory at this moment?         *)
Fresh(n) == {n} \cup {m \in Nodes \ {n} : own[n][m] > 0}
CanServe(n) ==
  /\ Acts(n) /\ serve[n] > 0 /\ given[n] < serve[n]
  /\ oterm[n] = serve[n] /\ IsQuorum(Fresh(n))
  /\ VoteIsTied => vote[n].term = serve[n]

-------------------------------------------------------------------------------
(* Time and processes.                                                          *)

(* Who stands again does so at once after the look, so that no time passes in   *)
(* between: a step that any delay would only make weaker.                       *)
Tick ==
  LET goes(n) == ClockGoesOn \/ n \notin suspended IN
  /\ lease' = [n \in Nodes |-> IF goes(n) THEN Less(lease[n]) ELSE lease[n]]
  /\ hold' = [n \in Nodes |-> IF goes(n) THEN Less(hold[n]) ELSE hold[n]]
  /\ seen' = [n \in Nodes |-> [m \in Nodes |-> Less(seen[n][m])]]
  /\ own' = [n \in Nodes |-> IF goes(n) THEN [m \in Nodes |-> Less(own[n][m])] ELSE own[n]]
  /\ raft' = [n \in Nodes |-> IF goes(n) THEN [m \in Nodes |-> Less(raft[n][m])] ELSE raft[n]]
  /\ net' = [n \in Nodes |->
               IF goes(n) THEN [m \in Nodes |-> [net[n][m] EXCEPT !.left = Less(@)]] ELSE net[n]]
  /\ armed' = [n \in Nodes |-> FALSE]
  /\ UNCHANGED <<process, disk, cand, lrun, lead, serve, given, oterm, reqs, grants, orders, past>>

(* A process ends: its memory is gone, and its connections with what is on them. *)
Crash(n) ==
  /\ Acts(n) /\ crashes < MaxCrashes
  /\ crashes' = crashes + 1
  /\ up' = [up EXCEPT ![n] = FALSE]
  /\ lease' = [lease EXCEPT ![n] = 0] /\ hold' = [hold EXCEPT ![n] = 0]
  /\ cand' = [cand EXCEPT ![n] = FALSE] /\ armed' = [armed EXCEPT ![n] = FALSE]
  /\ seen' = [seen EXCEPT ![n] = Zero] /\ lrun' = [lrun EXCEPT ![n] = 0]
  /\ lead' = [lead EXCEPT ![n] = 0] /\ serve' = [serve EXCEPT ![n] = 0]
  /\ given' = [given EXCEPT ![n] = 0]
  /\ own' = [own EXCEPT ![n] = Zero] /\ oterm' = [oterm EXCEPT ![n] = 0]
  /\ raft' = [raft EXCEPT ![n] = Zero]
  /\ net' = [a \in Nodes |-> IF a = n THEN [m \in Nodes |-> NoMsg] ELSE [net[a] EXCEPT ![n] = NoMsg]]
  /\ UNCHANGED <<suspended, run, len, wrong, disk, reqs, grants, orders, wrote, suspends>>

(* It is started again, by either release, and holds back for as long as any    *)
(* process of this replica may have promised.                                   *)
Start(n) ==
  /\ ~up[n]
  /\ up' = [up EXCEPT ![n] = TRUE]
  /\ run' = [run EXCEPT ![n] = @ + 1]
  /\ \E length \in {Lease, OtherLease} :
       /\ len' = [len EXCEPT ![n] = length]
       /\ kept' = [kept EXCEPT ![n] = Max(@, length)]
       /\ hold' = [hold EXCEPT ![n] = IF ~HoldsBack THEN 0 ELSE IF HoldIsKept THEN kept'[n] ELSE length]
  /\ UNCHANGED <<suspended, wrong, vote, log, lease, cand, armed, seen, lrun, leader, sent, past>>

Suspend(n) ==
  /\ Acts(n) /\ suspends < MaxSuspends
  /\ suspended' = suspended \cup {n} /\ suspends' = suspends + 1
  /\ UNCHANGED <<up, run, len, wrong, disk, voter, leader, sent, wrote, crashes>>

Resume(n) ==
  /\ n \in suspended
  /\ suspended' = suspended \ {n}
  /\ UNCHANGED <<up, run, len, wrong, disk, voter, leader, sent, past>>

-------------------------------------------------------------------------------
(* Elections.                                                                   *)

(* A replica votes for itself in the next term and asks the others. `of` is the *)
(* one whose lease voters are asked to overlook.                                *)
Campaign(n, kind, of) ==
  LET t == vote[n].term + 1 IN
  /\ t <= MaxTerm
  /\ vote' = [vote EXCEPT ![n] = [term |-> t, who |-> n, ok |-> FALSE]]
  /\ lease' = [lease EXCEPT ![n] = 0]
  /\ cand' = [cand EXCEPT ![n] = TRUE]
  /\ reqs' = reqs \cup {[term |-> t, who |-> n, kind |-> kind, of |-> of, log |-> log[n]]}
  /\ grants' = grants \cup {[term |-> t, who |-> n, by |-> n]}
  /\ UNCHANGED <<process, log, kept, hold, seen, lrun, leader, net, orders, past>>

(* An ordinary election. openraft looks at the own promise in the same step.    *)
Stand(n) ==
  /\ Ordinary
  /\ Acts(n) /\ lead[n] = 0 /\ hold[n] = 0 /\ lease[n] = 0
  /\ Campaign(n, "ordinary", None)
  /\ UNCHANGED armed

(* Has that process of that replica ended? What was true once stays true, so    *)
(* that evidence of any age is as good as this.                                 *)
HasEnded(n, r) == r < run[n] \/ (r = run[n] /\ ~up[n])

(* What a witness says of the process that led when it last heard an append. It *)
(* may say so at any time after the end, also by an answer that was delayed.    *)
Witnesses(n, r) ==
  {v \in Nodes \ {n} : v \in wrong \/ (IF NamesProcess THEN HasEnded(n, r) ELSE seen[v][n] > 0)}

(* Only with "death-by-address": a connection to n is refused, since nobody     *)
(* listens there just now, and that is kept for a while.                        *)
Refused(s, n) ==
  /\ ~NamesProcess
  /\ Acts(s) /\ s # n /\ ~up[n] /\ seen[s][n] < AddressTicks
  /\ seen' = [seen EXCEPT ![s][n] = AddressTicks]
  /\ UNCHANGED <<process, disk, lease, hold, cand, armed, lrun, leader, sent, past>>

(* A survivor stands because the leader's process is gone. openraft compares    *)
(* the vote in the step in which it stands.                                     *)
SeesDeath(s, n) ==
  LET r == lrun[s]
      who == Witnesses(n, r) IN
  /\ NamesProcess => r > 0
  /\ s \in who
  /\ NeedsWitnesses => IsQuorum(who)

Succeed(s, n) ==
  /\ Acts(s) /\ s # n /\ lead[s] = 0 /\ hold[s] = 0
  /\ vote[s].ok /\ vote[s].who = n
  /\ SeesDeath(s, n)
  /\ Campaign(s, "death", n)
  /\ UNCHANGED armed

(* A survivor whose vote was split stands again, by an ordinary election. It    *)
(* looks whether it is a candidate still, and then tells openraft to elect; the *)
(* rule is that openraft looks at the own promise once more as it does so.      *)
LookAgain(s) ==
  /\ StandsAgain /\ Acts(s) /\ cand[s] /\ ~armed[s] /\ hold[s] = 0
  /\ armed' = [armed EXCEPT ![s] = TRUE]
  /\ UNCHANGED <<process, disk, lease, hold, cand, seen, lrun, leader, sent, past>>

StandAgain(s) ==
  /\ Acts(s) /\ armed[s] /\ lead[s] = 0
  /\ RetryLooks => lease[s] = 0
  /\ Campaign(s, "ordinary", None)
  /\ armed' = [armed EXCEPT ![s] = FALSE]

(* A voter answers. An election after a transfer or a death overlooks promises  *)
(* and hold-backs; any other one does not.                                      *)
Overlooks(v, r) ==
  \/ r.kind = "transfer"
  \/ r.kind = "death" /\ (VotersLook => vote[v].ok /\ vote[v].who = r.of /\ SeesDeath(v, r.of))

Grant(v, r) ==
  /\ Acts(v) /\ r.who # v
  /\ \/ Overlooks(v, r)
     \/ /\ hold[v] = 0 /\ lease[v] = 0
        /\ (lead[v] > 0 /\ RefusesVotes) => ~IsQuorum({v} \cup {m \in Nodes \ {v} : raft[v][m] > 0})
        /\ (lead[v] > 0 /\ oterm[v] = lead[v] /\ ByOwnRecord) => ~IsQuorum(Fresh(v))
  /\ r.log >= log[v]
  /\ r.term > vote[v].term
  /\ vote' = [vote EXCEPT ![v] = [term |-> r.term, who |-> r.who, ok |-> FALSE]]
  /\ lease' = [lease EXCEPT ![v] = 0]
  /\ cand' = [cand EXCEPT ![v] = FALSE]
  /\ lead' = [lead EXCEPT ![v] = 0]
  /\ serve' = IF WithdrawsLate THEN serve ELSE [serve EXCEPT ![v] = 0]
  /\ grants' = grants \cup {[term |-> r.term, who |-> r.who, by |-> v]}
  /\ UNCHANGED <<process, log, kept, hold, armed, seen, lrun, given, own, oterm, raft, net, reqs, orders, past>>

Elected(n) ==
  LET t == vote[n].term IN
  /\ Acts(n) /\ cand[n] /\ vote[n].who = n /\ ~vote[n].ok
  /\ IsQuorum({g.by : g \in {x \in grants : x.term = t /\ x.who = n}})
  /\ vote' = [vote EXCEPT ![n].ok = TRUE]
  /\ lease' = [lease EXCEPT ![n] = len[n]]
  /\ cand' = [cand EXCEPT ![n] = FALSE] /\ armed' = [armed EXCEPT ![n] = FALSE]
  /\ lead' = [lead EXCEPT ![n] = t]
  /\ log' = [log EXCEPT ![n] = t]
  /\ raft' = [raft EXCEPT ![n] = Zero]
  /\ UNCHANGED <<process, kept, hold, seen, lrun, serve, given, own, oterm, sent, past>>

-------------------------------------------------------------------------------
(* Appends and heartbeats, which are alike here. A new round trip takes the     *)
(* place of one that was lost. The leader knows from its connection how long    *)
(* the other end promises, and counts that at most.                             *)
Counts(n, m) == IF LeaseIsAgreed THEN Min(len[n], len[m]) ELSE len[n]

Send(n, m) ==
  /\ Acts(n) /\ n # m /\ lead[n] > 0 /\ (GivesAway => given[n] < lead[n])
  /\ up[m] \* else there is no connection
  /\ net' = [net EXCEPT ![n][m] = [phase |-> "out", term |-> lead[n], left |-> Counts(n, m)]]
  /\ net'[n][m] # net[n][m]
  /\ UNCHANGED <<process, disk, voter, leader, reqs, grants, orders, past>>

(* A follower accepts: that is its promise, for the length of its own release.  *)
Accept(n, m) ==
  LET t == net[n][m].term IN
  /\ Acts(m) /\ net[n][m].phase = "out"
  /\ \/ t > vote[m].term
     \/ t = vote[m].term /\ vote[m].who = n
  /\ vote' = [vote EXCEPT ![m] = [term |-> t, who |-> n, ok |-> TRUE]]
  /\ lease' = [lease EXCEPT ![m] = len[m]]
  /\ log' = [log EXCEPT ![m] = Max(@, t)]
  /\ cand' = [cand EXCEPT ![m] = FALSE]
  /\ lead' = [lead EXCEPT ![m] = 0]
  /\ serve' = IF WithdrawsLate THEN serve ELSE [serve EXCEPT ![m] = 0]
  /\ net' = [net EXCEPT ![n][m].phase = "back"]
  /\ lrun' = [lrun EXCEPT ![m] = run[n]]
  /\ UNCHANGED <<process, kept, hold, armed, seen, given, own, oterm, raft, reqs, grants, orders, past>>

(* A follower that has a higher vote says so, and the leader steps down.        *)
Reject(n, m) ==
  LET t == net[n][m].term IN
  /\ Acts(m) /\ Acts(n) /\ net[n][m].phase = "out" /\ vote[m].term > t
  /\ net' = [net EXCEPT ![n][m] = NoMsg]
  /\ IF lead[n] = t
       THEN /\ vote' = [vote EXCEPT ![n] = [term |-> vote[m].term, who |-> vote[m].who, ok |-> FALSE]]
            /\ lease' = [lease EXCEPT ![n] = 0]
            /\ lead' = [lead EXCEPT ![n] = 0]
            /\ serve' = IF WithdrawsLate THEN serve ELSE [serve EXCEPT ![n] = 0]
       ELSE UNCHANGED <<vote, lease, lead, serve>>
  /\ UNCHANGED <<process, log, kept, hold, cand, armed, seen, lrun, given, own, oterm, raft, reqs, grants, orders, past>>

(* openraft hears of an acknowledgement: an entry of the own term is committed, *)
(* and leadership is published.                                                 *)
Hear(n, m, record) ==
  /\ raft' = [raft EXCEPT ![n][m] = record[n][m]]
  /\ wrote' = Max(wrote, lead[n])
  /\ serve' = IF given[n] < lead[n] THEN [serve EXCEPT ![n] = lead[n]] ELSE serve

(* The answer arrives, and goes into our record by the time of its sending.     *)
Return(n, m) ==
  LET msg == net[n][m]
      left == IF FromSending THEN msg.left ELSE Counts(n, m)
      record == IF msg.term > oterm[n] THEN [own EXCEPT ![n] = [Zero EXCEPT ![m] = left]]
                ELSE IF msg.term = oterm[n] THEN [own EXCEPT ![n][m] = Max(@, left)]
                ELSE own IN
  /\ Acts(n) /\ msg.phase = "back"
  /\ net' = [net EXCEPT ![n][m] = NoMsg]
  /\ own' = record /\ oterm' = [oterm EXCEPT ![n] = Max(@, msg.term)]
  /\ IF lead[n] = msg.term /\ ~RecordsLate
       THEN Hear(n, m, record)
       ELSE UNCHANGED <<raft, wrote, serve>>
  /\ UNCHANGED <<process, disk, voter, lead, given, reqs, grants, orders, crashes, suspends>>

HearLate(n, m) ==
  /\ RecordsLate /\ Acts(n) /\ lead[n] > 0 /\ oterm[n] = lead[n] /\ n # m
  /\ \/ own[n][m] > raft[n][m]
     \/ own[n][m] > 0 /\ wrote < lead[n]
  /\ Hear(n, m, own)
  /\ UNCHANGED <<process, disk, voter, lead, given, own, oterm, sent, crashes, suspends>>

Withdraw(n) ==
  /\ WithdrawsLate /\ Acts(n) /\ serve[n] > 0 /\ lead[n] # serve[n]
  /\ serve' = [serve EXCEPT ![n] = 0]
  /\ UNCHANGED <<process, disk, voter, lead, given, own, oterm, raft, sent, past>>

-------------------------------------------------------------------------------
(* Hand-over. The order is carried out also by a replica that holds back.       *)
Order(n, m) ==
  /\ Acts(n) /\ n # m /\ lead[n] > 0 /\ serve[n] = lead[n] /\ given[n] < lead[n]
  /\ Cardinality(orders) < MaxOrders
  /\ given' = IF GivesAway THEN [given EXCEPT ![n] = lead[n]] ELSE given
  /\ orders' = orders \cup {[term |-> lead[n], from |-> n, to |-> m]}
  /\ UNCHANGED <<process, disk, voter, lead, serve, own, oterm, raft, net, reqs, grants, past>>

Take(m, o) ==
  /\ Acts(m) /\ o.to = m /\ lead[m] = 0
  /\ vote[m].ok /\ vote[m].term = o.term /\ vote[m].who = o.from
  /\ Campaign(m, "transfer", o.from)
  /\ UNCHANGED armed

(* The order goes to everybody, and openraft drops its promise to a leader that *)
(* orders another to lead, also where it does not stand itself.                 *)
Release(m, o) ==
  /\ Acts(m) /\ lead[m] = 0 /\ lease[m] > 0
  /\ vote[m].ok /\ vote[m].term = o.term /\ vote[m].who = o.from
  /\ lease' = [lease EXCEPT ![m] = 0]
  /\ UNCHANGED <<process, disk, hold, cand, armed, seen, lrun, leader, sent, past>>

-------------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E n \in Nodes :
       \/ Crash(n) \/ Start(n) \/ Suspend(n) \/ Resume(n)
       \/ Stand(n) \/ LookAgain(n) \/ StandAgain(n) \/ Elected(n) \/ Withdraw(n)
       \/ \E r \in reqs : Grant(n, r)
       \/ \E o \in orders : Take(n, o) \/ Release(n, o)
       \/ \E m \in Nodes :
            \/ Refused(n, m) \/ Succeed(n, m)
            \/ Send(n, m) \/ Accept(n, m) \/ Reject(n, m) \/ Return(n, m) \/ HearLate(n, m)
            \/ Order(n, m)

Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* What must hold in every state that can be reached.                           *)
OneLeaderATerm ==
  \A a, b \in Nodes : a # b => ~(lead[a] > 0 /\ lead[a] = lead[b])
OneLease ==
  \A a, b \in Nodes : a # b => ~(CanServe(a) /\ CanServe(b))
NoStaleRead ==
  \A n \in Nodes : CanServe(n) => serve[n] >= wrote

-------------------------------------------------------------------------------
(* For the model checker: the others are alike.                                 *)
Symmetry == Permutations(Nodes \ {First})

(* What can have no effect any more is left out of what tells states apart.     *)
HasEffect(r) == \E v \in Nodes : v # r.who /\ vote[v].term < r.term
IsAwaited(n, m) ==
  \/ net[n][m].phase = "out" /\ (net[n][m].term >= vote[m].term \/ lead[n] = net[n][m].term)
  \/ net[n][m].phase = "back" /\ net[n][m].term \in {lead[n], serve[n]} \ {0}
View ==
  <<process, disk, voter, lead, serve, given,
    [n \in Nodes |-> IF oterm[n] \in {lead[n], serve[n]} \ {0} THEN <<own[n], oterm[n]>> ELSE <<Zero, 0>>],
    [n \in Nodes |-> IF lead[n] > 0 THEN raft[n] ELSE Zero],
    [n \in Nodes |-> [m \in Nodes |-> IF IsAwaited(n, m) THEN net[n][m] ELSE NoMsg]],
    {r \in reqs : HasEffect(r)},
    {g \in grants : cand[g.who] /\ vote[g.who].term = g.term},
    orders, past>>
===============================================================================
