------------------------------ MODULE WaitRace ------------------------------
(* Who may give back what was granted?                                          *)
(*                                                                              *)
(* Several calls of one owner for the same claims share one place in the queue, *)
(* and then one hold; each is attached under an attempt of its own. A call that *)
(* goes away gives up what it may have been given. It must not take away what   *)
(* another one was told, nor leave behind what nobody was told. README.md says  *)
(* which function of the code each action stands for.                           *)
(*                                                                              *)
(* The log puts commands into an order: what a command does is one step. The    *)
(* rules are those of the code. A name in `Faults` takes one of them away;      *)
(* mutants.toml lists which invariant must then fall.                           *)
EXTENDS Naturals, FiniteSets

CONSTANTS Calls,     \* 1..n: a call's attempt is its number, so that attempts rise
          MayCrash,  \* whether gateways end without giving up anything
          Faults     \* rules that are taken away

EachCounts == "robbing-cancel" \notin Faults     \* what the highest attempt gives up stays with the others
LowerCount == "cancel-by-highest" \notin Faults  \* an attempt below the highest is taken out as well
TwoGiveUp  == "two-are-told" \notin Faults       \* with two attempts each still gives up its own

VARIABLES state,    \* of the owner's request: "none", "waiting", "held"
          attached, \* the attempts that count
          free,     \* nobody else holds the lock
          call,     \* "idle", "waiting", "told" (the answer is on its way), "has" (its caller knows),
                    \* "leaving" (the caller is gone, its cancel is on its way), "over"
          crashed   \* some gateway ended

vars == <<state, attached, free, call, crashed>>
IsTop(c) == c \in attached /\ \A d \in attached : d <= c

Init == /\ state = "none" /\ attached = {} /\ free \in BOOLEAN /\ crashed = FALSE
        /\ call = [c \in Calls |-> "idle"]

(* An acquire is applied: it is granted, or attaches to the place or the hold.  *)
Acquire(c) ==
  /\ call[c] = "idle" /\ \A d \in Calls : d < c => call[d] # "idle"
  /\ attached' = IF state = "none" THEN {c} ELSE attached \cup {c}
  /\ IF state = "waiting" \/ (state = "none" /\ ~free)
       THEN state' = "waiting" /\ call' = [call EXCEPT ![c] = "waiting"]
       ELSE state' = "held" /\ call' = [call EXCEPT ![c] = "told"]
  /\ UNCHANGED <<free, crashed>>

(* The other owner releases; the request is granted, and whoever waits is told. *)
OtherReleases ==
  /\ ~free /\ free' = TRUE
  /\ IF state = "waiting"
       THEN /\ state' = "held"
            /\ call' = [c \in Calls |-> IF call[c] = "waiting" THEN "told" ELSE call[c]]
       ELSE UNCHANGED <<state, call>>
  /\ UNCHANGED <<attached, crashed>>

Deliver(c) ==
  /\ call[c] = "told" /\ call' = [call EXCEPT ![c] = "has"]
  /\ UNCHANGED <<state, attached, free, crashed>>

Leave(c) ==
  /\ call[c] \in {"waiting", "told"} /\ call' = [call EXCEPT ![c] = "leaving"]
  /\ UNCHANGED <<state, attached, free, crashed>>

(* Its cancel is applied: it takes its own attempt out, and what is attached to *)
(* by nobody ends.                                                              *)
Cancel(c) ==
  LET left == attached \ (IF LowerCount \/ IsTop(c) THEN {c} ELSE {})
      robs == ~EachCounts /\ IsTop(c)
      ends == c \in attached /\ (left = {} \/ robs) /\ (TwoGiveUp \/ attached = {c}) IN
  /\ call[c] = "leaving" /\ call' = [call EXCEPT ![c] = "over"]
  /\ IF ends THEN state' = "none" /\ attached' = {}
             ELSE state' = state /\ attached' = IF TwoGiveUp THEN left ELSE attached
  /\ UNCHANGED <<free, crashed>>

GatewayEnds(c) ==
  /\ MayCrash /\ call[c] \in {"waiting", "told", "leaving"}
  /\ call' = [call EXCEPT ![c] = "over"] /\ crashed' = TRUE
  /\ UNCHANGED <<state, attached, free>>

(* The owner releases. An answer that is still on its way tells of what the     *)
(* owner itself has ended.                                                      *)
Release ==
  /\ \E c \in Calls : call[c] = "has"
  /\ state' = "none" /\ attached' = {}
  /\ call' = [c \in Calls |-> IF call[c] \in {"has", "told"} THEN "over" ELSE call[c]]
  /\ UNCHANGED <<free, crashed>>

Next == \/ OtherReleases \/ Release
        \/ \E c \in Calls : Acquire(c) \/ Deliver(c) \/ Leave(c) \/ Cancel(c) \/ GatewayEnds(c)
Spec == Init /\ [][Next]_vars

(* Who was told that it holds the lock holds it, until its owner ends that.     *)
NotRobbed == \A c \in Calls : call[c] = "has" => state = "held"
(* When all calls are over and no gateway ended, nothing is left behind.        *)
NothingLeft == ((\A c \in Calls : call[c] \in {"idle", "over"}) /\ ~crashed) => state = "none"
=============================================================================
