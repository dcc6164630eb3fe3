/* A model of one line: three deliveries, two workers, one endpoint, and faults at any moment.

   `./broker model` lets the program spin try every order in which the steps below can happen. An `assert` that fails in
   any of them is an error; so is an order in which something never arrives. docs/architecture.md says what this shows.

   The parts, and where they are in the broker:
     publisher        stores deliveries and sends hints           delivery/dispatch/notify.py
     worker, claim    takes a free line under a new epoch         delivery/dispatch/claim.py
     worker, claim    recovers what a vanished worker had sent    delivery/dispatch/claim.py
     worker, page     settles, reads a page, marks its first      delivery/worker/page_sql.py, round_trip.py
     worker, round    settles, marks what is next, or releases    delivery/worker/settle_sql.py
     worker, unheard  settles again, then undoes the page's mark  delivery/worker/page_sql.py, round_trip.py
     worker, send     one request, only while the lease lasts     delivery/worker/rounds.py, delivery/http/client.py
     worker, renew    the lease lasts on                          delivery/worker/leases.py
     worker, released lets publishers wake the line again         delivery/worker/leases.py
     worker, idle     waits for a task or a hint, or sweeps       delivery/dispatch/sweep.py
     faults           leases that run out, and crashes

   To read it without knowing Promela:
     proctype              a process; all of them run side by side, and any of them may take the next step
     d_step { ... }        one indivisible step, here mostly one SQL statement or Redis script: it happens as a whole
     if :: a :: b fi       goes on with a branch whose first statement is possible; if several are, each is tried
     do :: a :: b od       the same, again and again until `break`
     condition             as a statement: wait until it is true
     x unless { y }        does x; as soon as y is possible, does y instead
     end:                  here a process may rest for good; anywhere else, resting for good is an error

   Names that are defined from outside:
     MAX_CRASHES           how many times a worker crashes, at any step
     MAX_LEASES_LOST       how many leases cannot be renewed in time although their worker is alive
     MAX_UNHEARD           how many commits succeed without the worker hearing of it
     SWEEP                 all hints are lost, and workers sweep; without it there are only hints, and none is lost
   and at most one of these mistakes, each of which `./broker model` has to find:
     NO_FENCE              settles do not compare the epoch
     NO_MARK               a request starts without a mark in the database
     NO_FLAG               recovery does not note that a delivery may have been received
     CLAIMS_LEASED         a claim takes a line whose lease still lasts
     NO_ABORT              a request goes on although its lease cannot be renewed
     RENEWS_UNFENCED       renewals do not compare the epoch
     FORGETS_UNHEARD       a worker does not send what a settle has marked without its hearing of it
     KEEPS_UNHEARD         what a page has marked without the worker's hearing of it is left marked
     UNMARKS_UNFENCED      such a mark is undone without comparing the epoch
     UNMARKS_FIRST         such a mark is undone before the answer that was settled with the page is settled again
     DISOWNS_FIRST         a worker disowns a line before it releases it, instead of afterwards
     OWNS_LATE             a worker owns a line after it has read what there is, instead of before */

#define DELIVERIES 3
#define WORKERS 2
#define NONE 7
#define WAITING 6

mtype = { PENDING, IN_FLIGHT, DELIVERED };

/* PostgreSQL: the deliveries, and the row of the line. */
mtype status[DELIVERIES] = PENDING;
bool uncertain[DELIVERIES];     /* the endpoint may have received it */
byte published;                 /* so many are stored, in the order of their numbers: 0, 1, 2 */
byte epoch = NONE;              /* the newest claim; the number of its worker is enough to tell claims apart here */
byte owner = NONE;              /* the worker that has the lease; NONE: the line was released */
bool lease_over;                /* the lease has run out */

/* Redis. */
byte key = NONE;                /* who knows of the line's work: nobody, WAITING for a worker, or a worker */
bool woken;                     /* a task for the line waits in the queue */
bool heard[WORKERS];            /* a hint is on its way to this worker */

/* What the workers know and do. */
bool holds[WORKERS];            /* by its own clock, this worker has the lease */
bool sending[WORKERS];          /* its request is on the wire */
byte crashing = NONE;           /* the worker that crashes now */

/* The endpoint. */
bool received[DELIVERIES];

/* Counted. */
byte crashes, leases_lost, unheard, repeated;

#define is_open(d) (published > d && status[d] != DELIVERED)
#define is_waiting(d) (published > d && status[d] == PENDING)
#define has_work (is_open(0) || is_open(1) || is_open(2))

#ifdef CLAIMS_LEASED
#define is_free true
#else
#define is_free (owner == NONE || lease_over)
#endif

#ifdef NO_FENCE
#define is_fenced false
#else
#define is_fenced (epoch != me || owner != me)
#endif

/* Of the last page; IN_FLIGHT here: marked by this worker, in a commit of which it did not hear. */
#ifdef FORGETS_UNHEARD
#define may_be_next(d) (seen > d && status[d] == PENDING)
#else
#define may_be_next(d) (seen > d && status[d] != DELIVERED)
#endif

#ifdef NO_MARK
#define is_recorded true
#else
#define is_recorded (status[answered] == IN_FLIGHT)      /* else this statement has recorded it already, unheard of */
#endif

#ifdef UNMARKS_UNFENCED
#define is_another false
#else
#define is_another is_fenced
#endif

#ifdef RENEWS_UNFENCED
#define is_unfit false
#else
#define is_unfit is_fenced
#endif

#ifdef NO_ABORT
#define has_ended true
#else
#define has_ended (!sending[owner])    /* by its own clock a worker ends its request some time before its lease ends */
#endif

/* Progress: whatever happens, all three are delivered in the end. */
ltl everything_arrives { <> (status[0] == DELIVERED && status[1] == DELIVERED && status[2] == DELIVERED) }

#ifdef SWEEP
inline wake() { skip }
inline own() { skip }
inline disown() { skip }
#else
/* Sends a task if nobody knows of the line's work, or a hint to the worker that runs it. */
inline wake() {
  d_step {
    if
    :: key == NONE -> key = WAITING; woken = true
    :: key == WAITING
    :: else -> heard[key] = true
    fi
  }
}

/* From now on this worker hears of new work, unless another one does. */
inline own() {
  d_step { if :: key == NONE || key == WAITING -> key = me :: else fi }
}

inline disown() {
  d_step { if :: key == me -> key = NONE :: else fi }
}
#endif

/* The answer is settled, unless another worker has claimed the line: then nothing is written. */
inline settle() {
  fenced = is_fenced;
  if
  :: !fenced && answered != NONE -> assert(received[answered]);
     if
     :: is_recorded -> status[answered] = DELIVERED
     :: else
     fi
  :: else
  fi
}

/* What a page that was not heard of has marked is put back, unless another worker has claimed the line. */
inline unmark() {
  fenced = is_another;
  d = 0;
  do
  :: d < DELIVERIES && !fenced && status[d] == IN_FLIGHT -> status[d] = PENDING; d++
  :: d < DELIVERIES && !(!fenced && status[d] == IN_FLIGHT) -> d++
  :: d == DELIVERIES -> break
  od;
  d = 0
}

inline mark() {
  flagged = uncertain[next];
#ifndef NO_MARK
  status[next] = IN_FLIGHT
#endif
}

/* The endpoint receives a request. All that subscribers are promised is checked here. */
inline receive(delivery) {
  d_step {
    assert(!sending[1 - me]);                                        /* one request at a time */
    assert(delivery == 0 || received[delivery - 1]);                 /* nothing is left out */
    assert(delivery == DELIVERIES - 1 || !received[delivery + 1]);   /* nothing arrives after a later one */
    if
    :: received[delivery] ->
       assert(flagged);                                              /* a repetition says that it may be one */
       repeated++;
       assert(repeated <= crashes + leases_lost)                     /* each fault repeats at most one */
    :: else -> received[delivery] = true
    fi
  }
}

proctype publisher() {
  do
  :: published < DELIVERIES ->
     published++;                                  /* the commit; the hint follows it */
     wake()
  :: else -> break
  od
}

proctype faults() {
end:
  do
     /* time passes: a lease runs out that is not renewed, since its worker has forgotten the line or cannot renew it */
  :: d_step { owner != NONE && !lease_over && !holds[owner] && has_ended -> lease_over = true }
     /* a worker cannot renew its lease in time, also during a request, and its own clock says so */
  :: d_step { owner != NONE && holds[owner] && leases_lost < MAX_LEASES_LOST -> leases_lost++; holds[owner] = false }
  :: d_step { crashing == NONE && crashes < MAX_CRASHES -> crashes++; crashing = 0 }
  :: d_step { crashing == NONE && crashes < MAX_CRASHES -> crashes++; crashing = 1 }
  od
}

proctype worker(byte me) {
  byte next;                                       /* the delivery that is sent next */
  byte answered;                                   /* the one whose answer has yet to be settled */
  byte seen;                                       /* how many were stored when it read its last page */
  byte d;
  bool flagged;                                    /* its request has Webhook-Possible-Duplicate */
  bool fenced, claimed;

start:
  {
    skip;                                          /* so that a worker can crash before its first step */

idle:
    skip;
    d_step { claimed = false; next = NONE; answered = NONE; seen = 0; flagged = false; fenced = false };
end:
    if
    :: d_step { woken -> woken = false }
    :: d_step { heard[me] -> heard[me] = false }   /* too late: the line has been released */
#ifdef SWEEP
    :: has_work && is_free                         /* once a second, whatever Redis says */
#endif
    fi;
#ifndef OWNS_LATE
    own();
#endif

    /* CLAIM, and RECOVER_LINES in the same transaction. */
    d_step {
      if
      :: is_free ->
         d = 0;
         do
         :: d < DELIVERIES && owner != NONE && status[d] == IN_FLIGHT ->    /* a lease ran out: recover */
            status[d] = PENDING;
#ifndef NO_FLAG
            uncertain[d] = true;
#endif
            d++
         :: d < DELIVERIES && !(owner != NONE && status[d] == IN_FLIGHT) -> d++
         :: d == DELIVERIES -> break
         od;
         d = 0;
         epoch = me; owner = me; claimed = true; lease_over = false; holds[me] = true
      :: else                                      /* another worker has it */
      fi
    };
    if
    :: !claimed -> disown(); goto idle
    :: claimed
    :: claimed && unheard < MAX_UNHEARD ->         /* claimed, and this worker does not know */
       d_step { unheard++; holds[me] = false };
       disown();
       goto idle
    fi;

    /* One commit settles the answer, reads a page, and marks the first of it. */
page:
    if
    :: skip
    :: unheard < MAX_UNHEARD -> unheard++; goto undo        /* the connection broke, and nothing is committed */
    fi;
    d_step {
      settle();
      seen = published;
      next = NONE;
      if
      :: fenced
      :: else ->
         if
         :: is_waiting(0) -> next = 0; mark()
         :: !is_waiting(0) && is_waiting(1) -> next = 1; mark()
         :: !is_waiting(0) && !is_waiting(1) && is_waiting(2) -> next = 2; mark()
         :: else
         fi
      fi
    };
    if
    :: goto heard_of
    :: unheard < MAX_UNHEARD -> unheard++          /* the connection broke, and all is committed */
    fi;
    /* Nobody knows which, but nothing has been sent: the answer is settled again, and the mark undone. */
undo:
    skip;
#ifdef KEEPS_UNHEARD
    goto page;
#endif
#ifdef UNMARKS_FIRST
    d_step { unmark() };
#endif
    d_step { settle() };
    answered = NONE;
    d_step { if :: !fenced -> unmark() :: else fi };
    if
    :: fenced -> holds[me] = false; disown(); goto idle
    :: !fenced -> goto page
    fi;

    /* One statement settles the answer and marks what goes next of the page. */
round:
    skip;
    d_step {
      settle();
      next = NONE;
      if
      :: fenced
      :: else ->
         if
         :: may_be_next(0) -> next = 0; mark()
         :: !may_be_next(0) && may_be_next(1) -> next = 1; mark()
         :: !may_be_next(0) && !may_be_next(1) && may_be_next(2) -> next = 2; mark()
         :: else
         fi
      fi
    };
    if
    :: skip
    :: unheard < MAX_UNHEARD -> unheard++; goto round       /* committed, but the connection broke: the same again */
    fi;
heard_of:
    answered = NONE;
    if
    :: fenced -> holds[me] = false; disown(); goto idle
    :: !fenced && next == NONE                     /* go on below */
    :: !fenced && next != NONE ->
send:
       if
       :: d_step { holds[me] -> sending[me] = true };
          receive(next);
          if
          :: d_step { sending[me] = false; answered = next; next = NONE; flagged = false };   /* the answer is here */
             if
             :: goto round
             :: goto page                          /* little is left of the last one */
             fi
#ifndef NO_ABORT
          :: d_step { !holds[me] -> sending[me] = false };      /* too late: nobody knows what came of it */
             disown();
             goto idle
#endif
          fi
       :: !holds[me] ->                            /* no time is left for a request: renew the lease first */
          d_step {
            fenced = is_unfit;
            if
            :: fenced
            :: else -> lease_over = false; holds[me] = true
            fi
          };
          if
          :: fenced -> disown(); goto idle
          :: !fenced -> goto send
          :: !fenced && unheard < MAX_UNHEARD ->   /* renewed, and this worker does not know */
             d_step { unheard++; holds[me] = false };
             goto send
          fi
       fi
    fi;

#ifdef OWNS_LATE
    own();
#endif
    if
    :: d_step { heard[me] -> heard[me] = false };  /* it is idle, and there is new work */
       goto page
    :: skip                                        /* it has been idle for long: release it */
    fi;

    /* In this order: release the line, then let publishers wake it again. */
#ifdef DISOWNS_FIRST
    disown();
#endif
release:
    skip;
    d_step {
      if
      :: is_fenced
      :: else -> owner = NONE
      fi
    };
    if
    :: skip
    :: unheard < MAX_UNHEARD -> unheard++; goto release     /* committed, but the connection broke: the same again */
    fi;
    holds[me] = false;
    disown();
    goto idle
  } unless { d_step { crashing == me -> crashing = NONE; holds[me] = false; sending[me] = false; heard[me] = false } };
  goto start                                       /* its successor knows nothing */
}

init { atomic { run publisher(); run faults(); run worker(0); run worker(1) } }
