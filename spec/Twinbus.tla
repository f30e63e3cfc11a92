------------------------------- MODULE Twinbus -------------------------------
(* The protocol of Twinbus for one entity: what a pair, a syphon and a host of the fleet may do
   next, and what must hold in every state.  A step of the model is one thing that happens at one
   place; time is left out, and "later" means after any steps of the others.  Left out as well:
   persons (force, freeze), missing and disabled entities, dead-lettering, second copies. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Apps,        \* processes with one pair each
  OneHost,     \* those of them that share a host; each of the others has a host of its own
  Quorum,      \* other hosts whose notices are enough
  SendersEach, \* senders of a pair: they share the entity's state
  Messages,    \* what each sender sends, one after the other: a session under strict order
  Queues,      \* the backlog queues
  Twin,        \* the namesake of the entity in the secondary: "none", "marked", "unmarked"
  Syphons,     \* programs that run the syphon, each with one pump for each queue
  Strict,      \* session_order="strict": then a pump works only under the lease of its queue
  Stops, Losses, Crashes, Cuts,  \* how many faults of each kind may happen
  Bug          \* a planted fault; "none" is the protocol

VARIABLES
  app,         \* of a pair: the entity's state, whether an attempt of its own failed, recovery told
  call,        \* of a sender: its message, where its attempt is, whether it is stored, the binding
  acked,       \* messages whose send returned
  accepted,    \* messages that the primary took, in the order of their first copies
  held,        \* of a backlog queue or the twin: messages, their locks, "the primary has it"
  late,        \* requests that nobody waits for any more, and that may still arrive
  taken,       \* messages that consumers received from the twin
  syphon,      \* "runs", "cut" (off from the secondary) or "stopped"
  lock,        \* of a lease: the session lock's owner, as the secondary knows it
  mark,        \* of a lease: who acts, as the session's state says, or "nobody"
  acts,        \* who acts on which lease, as the syphon itself knows it
  completed,   \* messages that a syphon completed in the secondary
  notices,     \* processes that say on the run directory or the board: failed over by my interval
  up,          \* the namespaces that run
  left         \* faults that may still happen

pair == <<app, call, acked>>
store == <<accepted, held, late, taken>>
pumps == <<syphon, lock, mark, acts, completed>>
world == <<notices, up, left>>
vars == <<pair, store, pumps, world>>

Senders == Apps \X (1..SendersEach)
Message(s) == <<s, call[s].n>>
Places == Queues \union (IF Twin = "none" THEN {} ELSE {"twin"})
Both == {"primary", "secondary"}
Up(place) == (IF place = "primary" THEN place ELSE "secondary") \in up
Host(p) == IF p \in OneHost THEN "one host" ELSE p
Range(list) == {list[i] : i \in DOMAIN list}
Without(list, i) == SubSeq(list, 1, i - 1) \o SubSeq(list, i + 1, Len(list))
With(m) == IF m \in Range(accepted) THEN accepted ELSE Append(accepted, m)
Free(m) == [m |-> m, by |-> "nobody", sent |-> FALSE]
Foreign == Free(<<"somebody else's", 0>>)
Empty(place) == IF place = "twin" /\ Twin = "unmarked" THEN <<Foreign>> ELSE <<>>
Spend(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]
Unlocked(Ends(_, _)) == [q \in Places |-> [i \in DOMAIN held[q] |->  \* where the lock ends
  IF Ends(q, held[q][i].by) THEN Free(held[q][i].m) ELSE held[q][i]]]

Init ==
  /\ app = [p \in Apps |-> [state |-> "HEALTHY", failed |-> FALSE, told |-> FALSE]]
  /\ call = [s \in Senders |-> [n |-> 1, at |-> "nowhere", stored |-> FALSE, bound |-> FALSE]]
  /\ notices = {} /\ up = Both /\ accepted = <<>> /\ late = {} /\ acked = {} /\ taken = {}
  /\ held = [q \in Places |-> Empty(q)] /\ completed = {}
  /\ syphon = [y \in Syphons |-> "runs"] /\ lock = [q \in Places |-> "nobody"] /\ acts = {}
  /\ mark = lock /\ left = [stop |-> Stops, answer |-> Losses, crash |-> Crashes, cut |-> Cuts]
(******************************** Pairing *********************************)
FailedOver(p) == app[p].state \in {"EARLY", "FAILED_OVER"}  \* early: on the evidence of others

(* A strict session has one queue, by its hash; a twin takes messages only if it has the mark. *)
Diverts == IF Strict THEN {CHOOSE q \in Queues : TRUE}
  ELSE Queues \union (IF Twin = "marked" \/ (Twin # "none" /\ Bug = "the mark is not read")
                      THEN {"twin"} ELSE {})
(* While messages of a strict session are in the backlog, it is bound to it.  After a notice of a
   recovery one live send tries the primary. *)
Route(s) == LET a == app[s[1]] IN
  IF call[s].bound THEN Diverts
  ELSE IF FailedOver(s[1]) THEN Diverts \union (IF a.told THEN {"primary"} ELSE {})
  ELSE {"primary"}
Begins(s, place) ==
  /\ call[s].at = "nowhere" /\ call[s].n <= Messages /\ place \in Route(s)
  /\ call' = [call EXCEPT ![s].at = place, ![s].stored = FALSE,
                          ![s].bound = @ \/ (Strict /\ place # "primary")]
  /\ app' = IF place = "primary" THEN [app EXCEPT ![s[1]].told = FALSE] ELSE app
  /\ UNCHANGED <<acked, store, pumps, world>>
Store(m, place) == Up(place) /\
  IF place = "primary" THEN accepted' = With(m) /\ UNCHANGED held
  ELSE held' = [held EXCEPT ![place] = Append(@, Free(m))] /\ UNCHANGED accepted
Stores(s) ==
  /\ call[s].at # "nowhere" /\ ~call[s].stored /\ Store(Message(s), call[s].at)
  /\ call' = [call EXCEPT ![s].stored = TRUE]
  /\ UNCHANGED <<app, acked, late, taken, pumps, world>>
Arrives(m, place) ==  \* a request whose sender has given it up; the primary may get several
  /\ <<m, place>> \in late /\ Store(m, place)
  /\ late' = IF place = "primary" THEN late ELSE late \ {<<m, place>>}
  /\ UNCHANGED <<pair, taken, pumps, world>>

Healthy(a) == [a EXCEPT !.state = "HEALTHY", !.failed = FALSE, !.told = FALSE]
Suspected(a) == [a EXCEPT !.failed = TRUE, !.state = IF @ = "HEALTHY" THEN "SUSPECT" ELSE @]
Ended(s, isOver) == call' = [call EXCEPT ![s].at = "nowhere", ![s].stored = FALSE,
                                         ![s].n = IF isOver THEN @ + 1 ELSE @]
Answered(s) ==  \* the send returns; a success on the primary, however late, heals the entity
  /\ call[s].at # "nowhere" /\ Ended(s, TRUE) /\ acked' = acked \union {Message(s)}
  /\ call[s].stored \/ (call[s].at # "primary" /\ Bug = "acknowledged without an answer")
  /\ app' = IF call[s].at = "primary" THEN [app EXCEPT ![s[1]] = Healthy(@)] ELSE app
  /\ UNCHANGED <<store, pumps, world>>

(* An attempt ends without an answer: it is made again, wherever the route leads then, or the call
   raises.  A namespace that runs may have stored the message, or may store it later. *)
Unanswered(s, raises, mayArrive) == LET place == call[s].at IN
  /\ place # "nowhere" /\ Ended(s, raises)
  /\ IF Up(place) THEN Spend("answer") ELSE UNCHANGED left
  /\ mayArrive => Up(place) /\ ~call[s].stored
  /\ late' = IF mayArrive THEN late \union {<<Message(s), place>>} ELSE late
  /\ app' = IF place = "primary" THEN [app EXCEPT ![s[1]] = Suspected(@)] ELSE app
  /\ UNCHANGED <<acked, accepted, held, taken, pumps, notices, up>>
Refused(s, raises) ==  \* throttled, full, not allowed: an answer that does not count
  /\ call[s].at # "nowhere" /\ ~call[s].stored /\ Up(call[s].at) /\ Ended(s, raises)
  /\ UNCHANGED <<app, acked, store, pumps, world>>
Becomes(p, state) ==
  app' = [app EXCEPT ![p].state = state] /\ UNCHANGED <<call, acked, store, pumps, world>>
FailsOver(p) ==  \* the failover interval has passed without a success
  app[p].state = "SUSPECT" /\ Becomes(p, "FAILED_OVER")
Returns(s) ==  \* a scan finds none of the session's messages, and none is on its way
  /\ call[s].bound /\ call[s].at = "nowhere" /\ Up("secondary")
  /\ \/ Bug = "a session returns early"
     \/ /\ \A q \in Queues : \A i \in DOMAIN held[q] : held[q][i].m[1] # s
        /\ \A r \in late : r[1][1] # s \/ r[2] = "primary"
  /\ call' = [call EXCEPT ![s].bound = FALSE] /\ UNCHANGED <<app, acked, store, pumps, world>>
(************************* Ping, and the fleet's rule **********************)
PingAnswered(p) ==  \* the pinger tells the others, who try the primary with one live send
  /\ FailedOver(p) /\ Up("primary")
  /\ app' = [o \in Apps |-> IF o = p THEN Healthy(app[o])
                            ELSE [app[o] EXCEPT !.told = FailedOver(o)]]
  /\ UNCHANGED <<call, acked, store, pumps, world>>
Evidence(p) == LET others == notices \ {p} IN  \* of a process of this host, or of enough hosts
  \/ \E o \in others : Host(o) = Host(p)
  \/ Cardinality({Host(o) : o \in others} \ {Host(p)}) >= Quorum
FailsOverEarly(p) ==
  /\ app[p].state = "SUSPECT" \/ (Bug = "evidence is enough" /\ app[p].state = "HEALTHY")
  /\ Evidence(p) /\ Becomes(p, "EARLY")
OwnInterval(p) ==  \* after its own failed pings, one interval later, it is evidence itself
  app[p].state = "EARLY" /\ ~Up("primary") /\ Becomes(p, "FAILED_OVER")
Posts(p) ==  \* notices are posted and forgotten at any later time
  /\ Cardinality(Apps) > 1 /\ UNCHANGED <<pair, store, pumps, up, left>>
  /\ \/ app[p].state = "FAILED_OVER" /\ p \notin notices /\ notices' = notices \union {p}
     \/ app[p].state # "FAILED_OVER" /\ p \in notices /\ notices' = notices \ {p}
(******************************** Syphon **********************************)
Works(y, q) ==  \* a pump; one that is cut off from the secondary does not know it yet
  syphon[y] # "stopped" /\ (Strict => <<y, q>> \in acts) /\ (q = "twin" => Twin = "marked")
Reaches(y) == syphon[y] = "runs" /\ Up("secondary")
Lock(q, i, by, sent) == held' = [held EXCEPT ![q][i].by = by, ![q][i].sent = sent]
Remove(q, i) == held' = [held EXCEPT ![q] = Without(@, i)]
Receives(y, q, i) ==
  /\ Works(y, q) /\ Reaches(y) /\ held[q][i].by = "nobody" /\ Lock(q, i, y, FALSE)
  /\ UNCHANGED <<pair, accepted, late, taken, pumps, world>>
IsTurn(q, i) ==  \* no earlier message of the strict session is left in the queue
  Strict => \A j \in 1..(i - 1) : held[q][j].m[1] # held[q][i].m[1]
Forwards(y, q, i, isAnswered) ==  \* without an answer it is forwarded again
  /\ Works(y, q) /\ held[q][i].by = y /\ ~held[q][i].sent /\ IsTurn(q, i) /\ Up("primary")
  /\ accepted' = With(held[q][i].m)
  /\ IF isAnswered THEN Lock(q, i, y, TRUE) /\ UNCHANGED left
     ELSE /\ Spend("answer")
          /\ IF Bug = "a forward is forgotten" THEN Lock(q, i, "forgotten", FALSE)
             ELSE UNCHANGED held
  /\ UNCHANGED <<pair, late, taken, pumps, notices, up>>
Completes(y, q, i) ==  \* only then
  /\ Works(y, q) /\ Reaches(y) /\ held[q][i].by = y /\ Remove(q, i)
  /\ held[q][i].sent \/ Bug = "completed before it is sent"
  /\ completed' = completed \union {held[q][i].m}
  /\ UNCHANGED <<pair, accepted, late, taken, syphon, lock, mark, acts, world>>
Expires(q, i) ==  \* the lock of a message whose pump is cut off ends
  /\ held[q][i].by \in Syphons /\ syphon[held[q][i].by] = "cut" /\ Lock(q, i, "nobody", FALSE)
  /\ UNCHANGED <<pair, accepted, late, taken, pumps, world>>
Consumes(i) ==  \* a consumer of the application receives from the twin
  /\ Up("secondary") /\ held["twin"][i].by = "nobody" /\ Remove("twin", i)
  /\ taken' = taken \union {held["twin"][i].m}
  /\ UNCHANGED <<pair, accepted, late, pumps, world>>
(********************************* Lease **********************************)
Takes(y, q) ==  \* the lock is free; its last owner may not know that yet
  /\ Strict /\ Reaches(y) /\ lock[q] = "nobody" /\ lock' = [lock EXCEPT ![q] = y]
  /\ acts' = IF Bug = "a takeover does not wait" THEN acts \union {<<y, q>>} ELSE acts
  /\ UNCHANGED <<pair, store, syphon, mark, completed, world>>
Marks(y, q) ==  \* nobody else has acted since this one did, or who did has stopped: no wait
  /\ Strict /\ Reaches(y) /\ lock[q] = y /\ <<y, q>> \notin acts /\ mark[q] \in {"nobody", y}
  /\ mark' = [mark EXCEPT ![q] = IF Bug = "a holder leaves no mark" THEN @ ELSE y]
  /\ acts' = acts \union {<<y, q>>} /\ UNCHANGED <<pair, store, syphon, lock, completed, world>>
GivesBack(y, q) ==  \* it stops, then it says so, then the lock is free
  /\ <<y, q>> \in acts /\ Reaches(y) /\ lock[q] = y /\ Spend("crash") /\ acts' = acts \ {<<y, q>>}
  /\ lock' = [lock EXCEPT ![q] = "nobody"] /\ mark' = [mark EXCEPT ![q] = "nobody"]
  /\ held' = Unlocked(LAMBDA r, by : r = q /\ by = y)
  /\ UNCHANGED <<pair, accepted, late, taken, syphon, completed, notices, up>>
LinkLost(q) ==  \* the secondary frees the lock of a connection that it has lost
  /\ lock[q] \in Syphons /\ syphon[lock[q]] = "cut" /\ lock' = [lock EXCEPT ![q] = "nobody"]
  /\ UNCHANGED <<pair, store, syphon, mark, acts, completed, world>>
TimePasses ==  \* as long as a lease is valid: who is cut off has stopped, the lock's owner acts
  /\ Strict /\ acts' = {a \in Syphons \X Queues : lock[a[2]] = a[1] /\ Reaches(a[1])}
  /\ acts' # acts /\ held' = Unlocked(LAMBDA q, by : by \in Syphons /\ <<by, q>> \notin acts')
  /\ mark' = [q \in Places |-> IF <<lock[q], q>> \in acts' THEN lock[q] ELSE mark[q]]
  /\ UNCHANGED <<pair, accepted, late, taken, syphon, lock, completed, world>>
(********************************* Faults *********************************)
Stop(side) ==  \* what is acknowledged is on disk; locks do not survive
  /\ side \in up /\ Spend("stop") /\ up' = up \ {side}
  /\ IF side = "primary" THEN UNCHANGED <<held, lock>>
     ELSE held' = Unlocked(LAMBDA q, by : by \in Syphons) /\ lock' = [q \in Places |-> "nobody"]
  /\ UNCHANGED <<pair, accepted, late, taken, syphon, mark, acts, completed, notices>>
Start(side) ==
  side \notin up /\ up' = up \union {side} /\ UNCHANGED <<pair, store, pumps, notices, left>>
Crash(y) ==
  /\ syphon[y] = "runs" /\ Spend("crash") /\ syphon' = [syphon EXCEPT ![y] = "stopped"]
  /\ held' = Unlocked(LAMBDA q, by : by = y) /\ acts' = {a \in acts : a[1] # y}
  /\ lock' = [q \in Places |-> IF lock[q] = y THEN "nobody" ELSE lock[q]]
  /\ UNCHANGED <<pair, accepted, late, taken, mark, completed, notices, up>>
Cut(y) == syphon[y] = "runs" /\ Spend("cut") /\ syphon' = [syphon EXCEPT ![y] = "cut"]
  /\ UNCHANGED <<pair, store, lock, mark, acts, completed, notices, up>>
Comes(y) == syphon[y] # "runs" /\ syphon' = [syphon EXCEPT ![y] = "runs"]  \* again
  /\ UNCHANGED <<pair, store, lock, mark, acts, completed, world>>
(****************************** All behaviours *****************************)
Pairing ==
  \/ \E s \in Senders : \/ \E place \in Route(s) : Begins(s, place)
                        \/ Stores(s) \/ Answered(s)
                        \/ \E raises, mayArrive \in BOOLEAN : Unanswered(s, raises, mayArrive)
                        \/ \E raises \in BOOLEAN : Refused(s, raises)
  \/ \E r \in late : Arrives(r[1], r[2])
  \/ \E p \in Apps : FailsOver(p) \/ FailsOverEarly(p) \/ OwnInterval(p) \/ Posts(p)
  \/ Twin = "marked" /\ \E i \in DOMAIN held["twin"] : Consumes(i)
Home ==  \* what brings messages home
  \/ \E p \in Apps : PingAnswered(p)
  \/ \E s \in Senders : Returns(s)
  \/ \E q \in Places : \E i \in DOMAIN held[q] : Expires(q, i) \/ \E y \in Syphons :
       Receives(y, q, i) \/ Forwards(y, q, i, TRUE) \/ Completes(y, q, i)
  \/ \E q \in Queues : LinkLost(q) \/ \E y \in Syphons : Takes(y, q) \/ Marks(y, q)
  \/ TimePasses \/ \E y \in Syphons : Comes(y)
Faults ==
  \/ \E side \in Both : Stop(side) \/ Start(side)
  \/ \E y \in Syphons : Crash(y) \/ Cut(y) \/ \E q \in Queues : GivesBack(y, q)
  \/ \E q \in Places, y \in Syphons : \E i \in DOMAIN held[q] : Forwards(y, q, i, FALSE)
Next == Pairing \/ Home \/ Faults
Spec == Init /\ [][Next]_vars /\ WF_vars(Home)
(************************** What must always hold **************************)
NothingLost == \A m \in acked : \/ m \in Range(accepted) \union taken
                                \/ \E q \in Places : \E i \in DOMAIN held[q] : held[q][i].m = m
CompletedAfterAccepted == completed \subseteq Range(accepted)
First(m) == CHOOSE i \in DOMAIN accepted : accepted[i] = m
StrictOrder == Strict => \A m, n \in acked : m[1] = n[1] /\ m[2] < n[2] /\ n \in Range(accepted)
  => m \in Range(accepted) /\ First(m) < First(n)
OneHolder == \A a, b \in acts : a[2] = b[2] => a[1] = b[1]
OwnFailure == \A p \in Apps : FailedOver(p) => app[p].failed
UnmarkedUntouched == Twin = "unmarked" => held["twin"] = <<Foreign>>

ComesHome == <>[](up = Both) => <>[](\A q \in Places : held[q] = Empty(q))
==============================================================================
