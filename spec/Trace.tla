-------------------------------- MODULE Trace --------------------------------
(* Recorded events as behaviours of the model.  The module Recorded, which tests/model/traces.py
   writes, has the traces: of each, its name and the events of its actors, each in order; there is
   no order across actors.  TLC prints the name of each trace that the model can follow to its end.
   A sender stands for one message; faults may happen at any time. *)
EXTENDS Twinbus, Recorded, TLC

VARIABLES which, done  \* the trace; how many events of each of its actors have happened

Events == Traces[which].events
Unlimited(kind) == UNCHANGED left  \* in place of Spend

State(p, state) ==  \* what the pair says of the entity is what the model says, or becomes so now
  IF state = app[p].state \/ (state = "FAILED_OVER" /\ FailedOver(p)) THEN UNCHANGED vars
  ELSE (FailsOver(p) \/ FailsOverEarly(p) \/ PingAnswered(p)) /\ app'[p].state = state
Step(e) == LET Copies == {i \in DOMAIN held[e[4]] : held[e[4]][i].m = <<e[3], 1>>} IN
  CASE e[1] = "begins" -> Begins(e[2], e[3])
    [] e[1] = "stores" -> Stores(e[2])
    [] e[1] = "may store" -> Stores(e[2]) \/ UNCHANGED vars
    [] e[1] = "answered" -> Answered(e[2])
    [] e[1] = "unanswered" -> Unanswered(e[2], FALSE, e[3])
    [] e[1] = "refused" -> Refused(e[2], FALSE)
    [] e[1] = "failed" -> Refused(e[2], FALSE) \/ Unanswered(e[2], FALSE, FALSE)
    [] e[1] = "arrives" -> Arrives(<<e[2], 1>>, e[3])
    [] e[1] = "state" -> State(e[2], e[3])
    [] e[1] = "receives" -> \E i \in Copies : Receives(e[2], e[4], i)
    [] e[1] = "forwards" -> \E i \in Copies : Forwards(e[2], e[4], i, e[5])
    [] e[1] = "completes" -> \E i \in Copies : Completes(e[2], e[4], i)
    [] e[1] = "cut" -> Cut(e[2])
    [] e[1] = "expires" -> \E i \in Copies : held[e[4]][i].by = e[2] /\ Expires(e[4], i)
    [] e[1] = "comes" -> Comes(e[2])
    [] e[1] = "act" -> acts' = e[2] /\ (TimePasses \/ \E y \in Syphons, q \in Queues :
                                          Marks(y, q) \/ GivesBack(y, q))

Hidden == Strict /\ \E q \in Queues : LinkLost(q) \/ \E y \in Syphons :
  Takes(y, q) \/ Cut(y) \/ Comes(y)

TraceInit == Init /\ which \in DOMAIN Traces /\ done = [a \in DOMAIN Events |-> 0]
TraceNext ==
  /\ which' = which
  /\ \/ Hidden /\ done' = done
     \/ \E a \in DOMAIN Events : /\ done[a] < Len(Events[a])
                                 /\ done' = [done EXCEPT ![a] = @ + 1]
                                 /\ Step(Events[a][done[a] + 1])
Told == (\A a \in DOMAIN Events : done[a] = Len(Events[a])) =>
  PrintT(<<"accepted", Traces[which].name>>)
==============================================================================
