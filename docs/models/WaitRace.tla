------------------------------ MODULE WaitRace ------------------------------
(* Who may give back what was granted, and when does a session end?             *)
(*                                                                              *)
(* Several calls of one owner for the same claims share one place in the queue, *)
(* and then one hold; each is attached under an attempt of its own. A call that *)
(* goes away gives up what it may have been given. It must not take away what   *)
(* another one was told, nor leave behind what nobody was told. The lock is     *)
(* held by another owner at first, a session, that lives on by keep-alives,     *)
(* closes, or is judged silent by the leader. README.md says which function of  *)
(* the code each action stands for.                                             *)
(*                                                                              *)
(* Commands are proposed into a log and applied in its order, some time later;  *)
(* when the leader changes, the end of the log may be lost. The rules below are *)
(* those of the code. A name in `Faults` takes one of them away; mutants.toml   *)
(* lists which invariant must then fall.                                        *)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS
  Calls,        \* the owner's calls, 1..n; they begin in this order
  Plain,        \* those of them that do not wait
  MaxAttempts,  \* how many attempts are begun
  KeptApart,    \* so many attempts are told apart; with one more nobody's leaving ends anything
  MaxTerm,      \* how many leaders there are
  MaxLog,       \* how many commands are under way
  Ttl,          \* the time to live of the other owner's session, in ticks; 0 when it only closes
  Faults        \* rules that are taken away

EachCounts  == "robbing-cancel" \notin Faults         \* what the highest attempt gives up stays with the others
LowerCount  == "cancel-by-highest" \notin Faults      \* an attempt below the highest is taken out as well
TwoGiveUp   == "two-are-told" \notin Faults           \* with two attempts each still gives up its own
Compares    == "late-cancel" \notin Faults            \* a cancel ends nothing that its attempts are not attached to
ExpectsThem == "expected-is-absent" \notin Faults     \* who was enqueued and has not come yet has not left
GivesUpAbsent == "absent-is-forgotten" \notin Faults  \* what those were granted who were not there is given back
EndsFirst   == "timed-out-early" \notin Faults        \* TIMED_OUT is said once the place is gone
IsDeaf      == "keep-alive-while-expiring" \notin Faults \* no keep-alive counts while the session is judged
AwaitsOutcome == "judged-twice" \notin Faults         \* a session is judged by one entry at a time
LooksAtOpening == "seen-ignored" \notin Faults        \* a session that was resumed since it was judged lives
IsDeposed   == "keep-alive-by-deposed" \notin Faults  \* a leader that was replaced acknowledges nothing

VARIABLES
  log,      \* commands that are proposed and not applied yet
  term, leads, \* which leader; whether it has begun
  (* The state that commands make. *)
  request,  \* what the owner has: "none", "waiting", "held"
  att,      \* the attempts that count on it; 0 is one that stays
  ends,     \* the attempt by which the wait ends
  other,    \* the other owner: "holds", "closed", "expired"
  opened,   \* how often its session was opened
  (* The leader's table. *)
  owed,     \* attempts that were granted something and were not there to hear of it
  due,      \* how long the session may still be silent
  judged,   \* whether its end is under way
  (* The others. *)
  begun,    \* the attempts that were given out
  call,     \* of each call where it stands, and its attempt
  excused,  \* something happened after which a hold may stay until its own time is over
  sign,     \* the session's keep-alive on its way there or back
  believes  \* how long the session's client believes that it lives

state == <<request, att, ends, other, opened>>
table == <<owed, due, judged>>
client == <<sign, believes>>
vars == <<log, term, leads, state, table, begun, call, excused, client>>

(* Where a call stands:
   idle    not begun                    asking   its command is under way
   queued  applied, not attached yet    waiting  attached at the leader
   told    the answer is on its way     has      its caller knows
   polled  its caller was told to ask again, and may
   cut     its leader is gone, its gateway asks again
   gone    its caller went while its command is under way
   leaving its gateway gives up its attempt
   timed   it was told TIMED_OUT        over     nothing is to come *)
Is(c, what) == call[c].at \in what
At(c, where) == [call EXCEPT ![c].at = where]
All(from, to) == [c \in Calls |-> IF Is(c, from) THEN [call[c] EXCEPT !.at = to] ELSE call[c]]
\* A hold is over and its owner knows: answers on their way are no use any more, who has not come yet asks again.
Known == [c \in Calls |-> IF Is(c, {"has", "told"}) THEN [call[c] EXCEPT !.at = "over"]
                          ELSE IF Is(c, {"queued"}) /\ request = "held" THEN [call[c] EXCEPT !.at = "cut"] ELSE call[c]]
Less(a) == IF a > 0 THEN a - 1 ELSE 0
Max(a, b) == IF a > b THEN a ELSE b
Top(s) == CHOOSE a \in s : \A b \in s : b <= a
NoSign == [phase |-> "none", left |-> 0]
IsProposed(kind) == \E i \in 1..Len(log) : log[i].kind = kind
Propose(command) == Len(log) < MaxLog /\ log' = Append(log, command)

Init ==
  /\ log = <<>> /\ term = 1 /\ leads = TRUE
  /\ request = "none" /\ att = {} /\ ends = 0 /\ opened = 1
  /\ other \in IF Ttl = 0 THEN {"holds", "closed"} ELSE {"holds"}
  /\ owed = {} /\ due = Ttl /\ judged = FALSE
  /\ begun = 0 /\ call = [c \in Calls |-> [at |-> "idle", as |-> 0]] /\ excused = FALSE
  /\ sign = NoSign /\ believes = Ttl

-------------------------------------------------------------------------------
(* Calls.                                                                       *)

(* The leader gives a call its attempt. At a place it may name others as left:  *)
(* any that are attached to it and whose callers are not there any more.        *)
Ask(c) ==
  LET there == {call[d].as : d \in {d \in Calls : Is(d, {"waiting"} \cup (IF ExpectsThem THEN {"queued"} ELSE {}))}}
      absent == IF request = "waiting" THEN att \ there ELSE {}
      as == IF c \in Plain THEN 0 ELSE begun + 1 IN
  /\ leads /\ Is(c, {"idle", "polled", "cut"})
  /\ \A d \in Calls : d < c => ~Is(d, {"idle"})
  /\ as <= MaxAttempts
  /\ \E left \in SUBSET absent : Propose([kind |-> "acquire", by |-> c, as |-> as, left |-> left])
  /\ begun' = Max(begun, as)
  /\ call' = [call EXCEPT ![c] = [at |-> "asking", as |-> as]]
  /\ UNCHANGED <<term, leads, state, table, excused, client>>

(* The call that was enqueued attaches at the leader; the wait may be over.     *)
Attach(c) ==
  /\ leads /\ Is(c, {"queued"})
  /\ IF request = "waiting" THEN call' = At(c, "waiting") /\ UNCHANGED owed
     ELSE IF call[c].as \in owed
       THEN call' = At(c, "told") /\ owed' = (IF GivesUpAbsent THEN owed \ {call[c].as} ELSE {})
       ELSE call' = At(c, "cut") /\ UNCHANGED owed
  /\ UNCHANGED <<log, term, leads, state, due, judged, begun, excused, client>>

Deliver(c) ==
  /\ Is(c, {"told"}) /\ call' = At(c, "has")
  /\ UNCHANGED <<log, term, leads, state, table, begun, excused, client>>

(* Its poll is over: it may ask again, and its place is kept for a while.       *)
PollEnds(c) ==
  /\ leads /\ Is(c, {"waiting"}) /\ call' = At(c, "polled")
  /\ UNCHANGED <<log, term, leads, state, table, begun, excused, client>>

(* Its gateway loses the leader for a moment and asks again.                    *)
CutOff(c) ==
  /\ leads /\ Is(c, {"queued", "waiting"}) /\ call' = At(c, "cut")
  /\ UNCHANGED <<log, term, leads, state, table, begun, excused, client>>

(* Its caller goes away. While others are attached, nothing has to be said yet. *)
Leave(c) ==
  /\ Is(c, {"asking", "queued", "waiting", "told", "polled", "cut"})
  /\ \/ call' = At(c, IF Is(c, {"asking"}) THEN "gone" ELSE IF Is(c, {"polled", "cut"}) THEN "over" ELSE "leaving")
     \/ Is(c, {"waiting"}) /\ (\E d \in Calls \ {c} : Is(d, {"waiting"})) /\ call' = At(c, "over")
  /\ UNCHANGED <<log, term, leads, state, table, begun, excused, client>>

(* Its gateway ends, and gives up nothing.                                      *)
GatewayEnds(c) ==
  /\ Is(c, {"asking", "queued", "waiting", "told", "leaving", "gone"})
  /\ call' = At(c, "over") /\ excused' = TRUE
  /\ UNCHANGED <<log, term, leads, state, table, begun, client>>

GiveUp(c) ==
  /\ leads /\ Is(c, {"leaving"}) /\ call' = At(c, "over")
  /\ Propose([kind |-> "cancel", as |-> {call[c].as}])
  /\ UNCHANGED <<term, leads, state, table, begun, excused, client>>

(* The owner releases what it was told of. An answer that is on its way by then *)
(* tells of what the owner itself has ended.                                    *)
Release ==
  /\ leads /\ \E c \in Calls : Is(c, {"has"})
  /\ ~IsProposed("release")
  /\ Propose([kind |-> "release"])
  /\ UNCHANGED <<term, leads, state, table, begun, call, excused, client>>

-------------------------------------------------------------------------------
(* The leader's duties.                                                         *)

(* A place that nobody is attached to is given up after a while.                *)
Forsake ==
  /\ leads /\ request = "waiting" /\ ~\E c \in Calls : Is(c, {"queued", "waiting"})
  /\ Propose([kind |-> "cancel", as |-> att])
  /\ UNCHANGED <<term, leads, state, table, begun, call, excused, client>>

(* So is what was granted to those who were not there.                          *)
GiveBack ==
  /\ leads /\ owed # {}
  /\ Propose([kind |-> "cancel", as |-> owed]) /\ owed' = {}
  /\ UNCHANGED <<term, leads, state, due, judged, begun, call, excused, client>>

(* The end of a wait has come; an entry of a later time says so.                *)
TimeOut ==
  /\ leads /\ request = "waiting"
  /\ Propose([kind |-> "timeout", as |-> ends])
  /\ call' = IF EndsFirst THEN call ELSE All({"waiting"}, "timed")
  /\ UNCHANGED <<term, leads, state, table, begun, excused, client>>

(* The session was silent for too long by the leader's count. It judges again   *)
(* only once it knows what became of the entry before, also if the session was  *)
(* resumed meanwhile.                                                           *)
Judge ==
  /\ Ttl > 0 /\ leads /\ other = "holds" /\ due = 0 /\ ~judged
  /\ AwaitsOutcome => ~IsProposed("expire")
  /\ Propose([kind |-> "expire", seen |-> opened]) /\ judged' = TRUE
  /\ UNCHANGED <<term, leads, state, owed, due, begun, call, excused, client>>

-------------------------------------------------------------------------------
(* The log.                                                                     *)

(* An attempt attaches to what there is, in place of those that left.           *)
Attached(as, left) ==
  LET all == (att \ left) \cup {as} IN
  IF 0 \in att \cup {as} \/ Cardinality(all) > KeptApart THEN {0} ELSE all

ApplyAcquire(m) ==
  LET c == m.by
      heard == call[c].as = m.as /\ Is(c, {"asking", "gone"})
      answer(what) == IF ~heard THEN call ELSE IF Is(c, {"gone"}) THEN At(c, "leaving") ELSE At(c, what) IN
  /\ CASE request = "held" \/ (request = "none" /\ other # "holds") ->
            /\ request' = "held"
            /\ att' = IF request = "none" THEN {m.as} ELSE Attached(m.as, m.left)
            /\ call' = answer("told") /\ UNCHANGED ends
       [] m.as = 0 /\ ~(request = "held" \/ (request = "none" /\ other # "holds")) ->
            /\ call' = answer("over") /\ UNCHANGED <<request, att, ends>>
       [] OTHER ->
            /\ request' = "waiting"
            /\ att' = IF request = "none" THEN {m.as} ELSE Attached(m.as, m.left)
            /\ ends' = m.as
            /\ call' = answer("queued")
  /\ UNCHANGED <<other, opened, table, client>>

(* What is left of the attempts decides.                                        *)
ApplyCancel(m) ==
  LET counts == IF ~LowerCount /\ att # {} /\ Top(att) \notin m.as THEN {}
                ELSE IF ~TwoGiveUp /\ Cardinality(att) > 1 THEN {} ELSE m.as
      left == att \ counts
      robs == ~EachCounts /\ att # {} /\ Top(att) \in counts
      over == request # "none" /\ 0 \notin att /\ (left = {} \/ robs \/ ~Compares) IN
  /\ IF over THEN request' = "none" /\ att' = {} ELSE UNCHANGED request /\ att' = IF 0 \in att THEN att ELSE left
  /\ call' = IF ~over THEN call ELSE IF request = "waiting" THEN All({"queued", "waiting"}, "over")
             ELSE All({"queued"}, "cut")
  /\ UNCHANGED <<ends, other, opened, table, client>>

ApplyTimeout(m) ==
  /\ IF request = "waiting" /\ ends = m.as
       THEN request' = "none" /\ att' = {} /\ call' = All({"queued", "waiting"}, "timed")
       ELSE UNCHANGED <<request, att, call>>
  /\ UNCHANGED <<ends, other, opened, table, client>>

ApplyRelease ==
  /\ IF request = "held" THEN request' = "none" /\ att' = {} ELSE UNCHANGED <<request, att>>
  /\ call' = Known
  /\ UNCHANGED <<ends, other, opened, table, client>>

(* The lock is free: whoever waits is granted it, and who is attached is told.  *)
MoveUp ==
  IF request = "waiting"
    THEN LET there == {call[c].as : c \in {c \in Calls : Is(c, {"waiting"})}} IN
         /\ request' = "held"
         /\ call' = All({"waiting"}, "told")
         /\ owed' = IF ~leads THEN {} ELSE IF there = {} \/ GivesUpAbsent THEN att \ there ELSE {}
    ELSE UNCHANGED <<request, call, owed>>

ApplyClose ==
  /\ IF other = "holds" THEN other' = "closed" /\ MoveUp ELSE UNCHANGED <<other, request, call, owed>>
  /\ UNCHANGED <<att, ends, opened, due, judged, client>>

ApplyExpire(m) ==
  /\ IF other = "holds" /\ (opened <= m.seen \/ ~LooksAtOpening)
       THEN other' = "expired" /\ MoveUp
       ELSE UNCHANGED <<other, request, call, owed>>
  /\ judged' = FALSE
  /\ UNCHANGED <<att, ends, opened, due, client>>

ApplyOpen ==
  /\ IF other = "holds"
       THEN /\ opened' = opened + 1 /\ due' = Ttl /\ judged' = FALSE
            /\ sign' = IF sign.phase = "opening" THEN [sign EXCEPT !.phase = "back"] ELSE sign
       ELSE UNCHANGED <<opened, due, judged, sign>>
  /\ UNCHANGED <<request, att, ends, other, owed, call, believes>>

Apply ==
  /\ log # <<>> /\ log' = Tail(log)
  /\ LET m == Head(log) IN
       CASE m.kind = "acquire" -> ApplyAcquire(m)
         [] m.kind = "cancel" -> ApplyCancel(m)
         [] m.kind = "timeout" -> ApplyTimeout(m)
         [] m.kind = "release" -> ApplyRelease
         [] m.kind = "close" -> ApplyClose
         [] m.kind = "expire" -> ApplyExpire(m)
         [] m.kind = "open" -> ApplyOpen
  /\ UNCHANGED <<term, leads, begun, excused>>

(* The time of a hold is over: whoever was told of it knows that.               *)
HoldEnds ==
  /\ request = "held" /\ request' = "none" /\ att' = {}
  /\ call' = Known
  /\ UNCHANGED <<log, term, leads, ends, other, opened, table, begun, excused, client>>

(* The leader is replaced. The end of the log may be lost, the rest is applied  *)
(* before the next one begins, which rebuilds its table from the state.         *)
Failover ==
  /\ leads /\ term < MaxTerm
  /\ term' = term + 1 /\ leads' = FALSE
  /\ \E kept \in 0..Len(log) : log' = SubSeq(log, 1, kept)
  /\ call' = [c \in Calls |-> IF Is(c, {"asking", "queued", "waiting"}) THEN [call[c] EXCEPT !.at = "cut"]
                              ELSE IF Is(c, {"gone"}) THEN [call[c] EXCEPT !.at = "over"] ELSE call[c]]
  /\ owed' = {} /\ excused' = TRUE
  /\ sign' = IF sign.phase = "opening" THEN NoSign ELSE sign
  /\ UNCHANGED <<state, due, judged, begun, believes>>

Begin ==
  /\ ~leads /\ log = <<>> /\ leads' = TRUE
  /\ due' = Ttl /\ judged' = FALSE
  /\ UNCHANGED <<log, term, state, owed, begun, call, excused, client>>

-------------------------------------------------------------------------------
(* The other owner.                                                             *)
Close ==
  /\ leads /\ other = "holds" /\ ~IsProposed("close")
  /\ Propose([kind |-> "close"])
  /\ believes' = 0 /\ sign' = NoSign
  /\ UNCHANGED <<term, leads, state, table, begun, call, excused>>

(* A leader's time stands still while there is none.                            *)
Tick ==
  /\ Ttl > 0 /\ other = "holds"
  /\ due' = IF leads THEN Less(due) ELSE due
  /\ believes' = Less(believes) /\ sign' = [sign EXCEPT !.left = Less(@)]
  /\ UNCHANGED <<log, term, leads, state, owed, judged, begun, call, excused>>

(* A keep-alive, which counts from when it is sent; an opening is one, too.     *)
Show ==
  /\ Ttl > 0 /\ other = "holds" /\ sign' = [phase |-> "out", left |-> Ttl] /\ sign # sign'
  /\ UNCHANGED <<log, term, leads, state, table, begun, call, excused, believes>>

Resume ==
  /\ Ttl > 0 /\ leads /\ other = "holds" /\ opened = 1 /\ sign.phase # "opening"
  /\ Propose([kind |-> "open"]) /\ sign' = [phase |-> "opening", left |-> Ttl]
  /\ UNCHANGED <<term, leads, state, table, begun, call, excused, believes>>

Note ==
  /\ sign.phase = "out" /\ other = "holds"
  /\ \/ leads /\ (judged => ~IsDeaf) /\ due' = Ttl
     \/ ~IsDeposed /\ term > 1 /\ UNCHANGED due
  /\ sign' = [sign EXCEPT !.phase = "back"]
  /\ UNCHANGED <<log, term, leads, state, owed, judged, begun, call, excused, believes>>

Hear ==
  /\ sign.phase = "back" /\ sign' = NoSign /\ believes' = Max(believes, sign.left)
  /\ UNCHANGED <<log, term, leads, state, table, begun, call, excused>>

-------------------------------------------------------------------------------
Next ==
  \/ \E c \in Calls : Ask(c) \/ Attach(c) \/ Deliver(c) \/ PollEnds(c) \/ CutOff(c)
                      \/ Leave(c) \/ GatewayEnds(c) \/ GiveUp(c)
  \/ Release \/ Forsake \/ GiveBack \/ TimeOut \/ Judge
  \/ Apply \/ HoldEnds \/ Failover \/ Begin
  \/ Close \/ Tick \/ Show \/ Resume \/ Note \/ Hear
Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* Who was told that it holds the lock holds it, until its owner ends that or   *)
(* its time is over.                                                            *)
NotRobbed == \A c \in Calls : Is(c, {"has"}) => request = "held"

(* TIMED_OUT is said of a place that is gone.                                   *)
TimedOutAfterRemoval == \A c \in Calls : Is(c, {"timed"}) => call[c].as \notin att

(* When all calls are over and nothing is under way, nothing is held that       *)
(* nobody was told of and nobody will give back. (A place is always given up.)  *)
IsQuiet == leads /\ log = <<>> /\ \A c \in Calls : Is(c, {"idle", "over", "timed", "has"})
NothingLeft ==
  (IsQuiet /\ ~excused /\ request = "held" /\ owed = {}) => (0 \in att \/ \E c \in Calls : Is(c, {"has"}))

(* A session is not expired while its client has reason to believe that it      *)
(* lives, nor was about to hear so.                                             *)
NoEarlyExpiry == other = "expired" => believes = 0 /\ ~(sign.phase = "back" /\ sign.left > 0)
=============================================================================
