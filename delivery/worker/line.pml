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
     faults, jump     the database's clock jumps                  delivery/maintenance/clock.py
     faults, restore  an older state of the database comes back   delivery/maintenance/incarnation.py

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
     MAX_JUMPS             how many times the database's clock jumps ahead or back
     MAX_RESTORES          how many times the database is restored to the state that it had at some moment
     KEYED                 the line is keyed, and the endpoint answers the first delivery 503, once; without it, serial
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
     OWNS_LATE             a worker owns a line after it has read what there is, instead of before
     TRUSTS_FAR_LEASES     a lease that lasts longer than leases do is waited for
     BELIEVES_JUMPS        a claim takes a line whose lease is over only because the clock jumped ahead
     RESTORES_UNFLAGGED    what is unfinished in a restored state is not noted as perhaps received
     REUSES_IDS            ids that were given after that state are given again
     FORGETS_HOLDS         a claim does not read which keys are held
     HOLDS_ALL_KEYS        a held delivery holds the other keys too */

#define DELIVERIES 3
#define WORKERS 2
#define NONE 7
#define WAITING 6

mtype = { PENDING, IN_FLIGHT, DELIVERED, LOST };       /* LOST: stored after the state that was restored */

/* PostgreSQL: the deliveries, and the row of the line. */
mtype status[DELIVERIES] = PENDING;
bool uncertain[DELIVERIES];     /* the endpoint may have received it */
byte published;                 /* so many are stored, in the order of their numbers: 0, 1, 2 */
byte epoch = NONE;              /* the newest claim; the number of its worker is enough to tell claims apart here */
byte owner = NONE;              /* the worker that has the lease; NONE: the line was released */
bool lease_over;                /* the lease has run out, by the database's clock */
bool early;                     /* only since that jumped ahead; who claims lines waits for as long as a lease lasts */
bool far;                       /* the lease seems to last for hours, since the clock was set back */
bool hold;                      /* the first delivery holds its key */
bool rests;                     /* its pause lasts */

/* Redis. */
byte key = NONE;                /* who knows of the line's work: nobody, WAITING for a worker, or a worker */
bool woken;                     /* a task for the line waits in the queue */
bool heard[WORKERS];            /* a hint is on its way to this worker */

/* What the workers know and do. */
bool holds[WORKERS];            /* by its own clock, this worker has the lease */
bool sending[WORKERS];          /* its request is on the wire */
byte crashing = NONE;           /* the worker that crashes now */
bool ending[WORKERS];           /* it ends, since the database was restored */

/* The endpoint. */
bool received[DELIVERIES];

/* Counted. */
byte crashes, leases_lost, unheard, repeated, jumps, restores, refusals;

/* The state that a restore brings back: so many were stored, so many of them delivered. */
byte kept = NONE, done;

#define is_through(d) (status[d] == DELIVERED || status[d] == LOST)
#define is_open(d) (published > d && !is_through(d))
#define is_waiting(d) (published > d && status[d] == PENDING && may_go(d))

#ifdef KEYED                    /* the first and the last delivery have the same key */
#define MAX_REFUSALS 1
#define has_work (is_open(0) && !rests || is_open(1) || is_open(2) && !hold)
#define is_early(d) (d == 2 && !received[0])
#define is_late(d) (d == 0 && received[2])
#ifdef HOLDS_ALL_KEYS
#define may_go(d) (d == 0 && !rests || d != 0 && !knows_hold)
#else
#define may_go(d) (d == 0 && !rests || d == 1 || d == 2 && !knows_hold)
#endif
#else
#define MAX_REFUSALS 0
#define has_work (is_open(0) || is_open(1) || is_open(2))
#define is_early(d) (d > 0 && !received[d - 1] && status[d - 1] != LOST)
#define is_late(d) (d < DELIVERIES - 1 && received[d + 1] && !(restores && received[d]))
#define may_go(d) true
#endif

#ifdef CLAIMS_LEASED
#define is_free true
#else
#ifdef BELIEVES_JUMPS
#define is_free (owner == NONE || lease_over)
#else
#define is_free (owner == NONE || lease_over && !early)
#endif
#endif

#ifdef NO_FENCE
#define is_fenced false
#else
#define is_fenced (epoch != me || owner != me)
#endif

/* Of the last page; IN_FLIGHT here: marked by this worker, in a commit of which it did not hear. */
#ifdef FORGETS_UNHEARD
#define may_be_next(d) (seen > d && status[d] == PENDING && may_go(d))
#else
#define may_be_next(d) (seen > d && !is_through(d) && may_go(d))
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

/* Progress: whatever happens, all three are delivered in the end, but for what a restored state lacks. */
ltl everything_arrives { <> [] (is_through(0) && is_through(1) && is_through(2)) }

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
  :: !fenced && answered != NONE && !refused -> assert(received[answered]);
     if
     :: is_recorded ->
        status[answered] = DELIVERED;
        if :: answered == 0 -> hold = false; knows_hold = false :: else fi
     :: else
     fi
  :: !fenced && answered != NONE && refused ->     /* 503: its key is held, for a while */
     if
     :: is_recorded -> status[answered] = PENDING; hold = true; rests = true; knows_hold = true
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
    assert(!is_early(delivery));                                     /* nothing is left out */
    assert(!is_late(delivery));                                      /* nothing arrives after a later one */
    if
    :: received[delivery] ->
       assert(flagged);                                              /* a repetition says that it may be one */
       repeated++;
       assert(repeated <= crashes + leases_lost + DELIVERIES * restores)     /* each fault repeats at most one */
    :: else -> received[delivery] = true
    fi
  }
}

/* The database as it was when it was saved; what is unfinished in it may have been sent since. */
inline restore() {
  d = done;
  do
  :: d < kept ->
     status[d] = PENDING;
#ifndef RESTORES_UNFLAGGED
     uncertain[d] = true;
#endif
     d++
  :: d >= kept && d < published ->
#ifdef REUSES_IDS
     status[d] = PENDING;
     uncertain[d] = false;
#else
     status[d] = LOST;
#endif
     d++
  :: d >= kept && d >= published -> break
  od;
#ifdef REUSES_IDS
  published = kept;
#endif
  d = 0;
  epoch = NONE; owner = NONE; lease_over = false; early = false; far = false;
  holds[0] = false; sending[0] = false; ending[0] = true;       /* workers that know what was before end */
  holds[1] = false; sending[1] = false; ending[1] = true
}

proctype publisher() {
end:
  do
  :: published < DELIVERIES ->
     published++;                                  /* the commit; the hint follows it */
     wake()
  od
}

proctype faults() {
  byte d;
end:
  do
     /* time passes: a lease runs out that is not renewed, since its worker has forgotten the line or cannot renew it */
  :: d_step {
       owner != NONE && (!lease_over || early) && !far && !holds[owner] && has_ended -> lease_over = true; early = false
     }
     /* a worker cannot renew its lease in time, also during a request, and its own clock says so */
  :: d_step { owner != NONE && holds[owner] && leases_lost < MAX_LEASES_LOST -> leases_lost++; holds[owner] = false }
  :: d_step { crashing == NONE && crashes < MAX_CRASHES -> crashes++; crashing = 0 }
  :: d_step { crashing == NONE && crashes < MAX_CRASHES -> crashes++; crashing = 1 }
     /* the clock jumps ahead: the lease is over, although its worker is alive */
  :: d_step {
       jumps < MAX_JUMPS && owner != NONE && !lease_over -> jumps++; lease_over = true; early = true; far = false
     }
     /* the clock is set back: the lease lasts for hours, also one that was over, until a worker that looks for such
        leases shortens it */
  :: d_step { jumps < MAX_JUMPS && owner != NONE -> jumps++; lease_over = false; early = false; far = true }
#ifndef TRUSTS_FAR_LEASES
  :: d_step { far -> far = false }
#endif
     /* a state is saved, and at any later moment restored */
  :: d_step {
       kept == NONE && restores < MAX_RESTORES ->
       kept = published;
       done = (status[0] == DELIVERED) + (status[1] == DELIVERED) + (status[2] == DELIVERED)
     }
  :: d_step { kept != NONE && restores < MAX_RESTORES -> restores++; restore() }
     /* a pause ends; it is long enough for what has another key */
  :: d_step { rests && is_through(1) -> rests = false }
  od
}

proctype worker(byte me) {
  byte next;                                       /* the delivery that is sent next */
  byte answered;                                   /* the one whose answer has yet to be settled */
  byte seen;                                       /* how many were stored when it read its last page */
  byte d;
  bool flagged;                                    /* its request has Webhook-Possible-Duplicate */
  bool fenced, claimed;
  bool refused;                                    /* the answer that has yet to be settled is 503 */
  bool knows_hold;                                 /* it knows that the key of the first is held */

start:
  {
    skip;                                          /* so that a worker can crash before its first step */

idle:
    skip;
    d_step {
      claimed = false; next = NONE; answered = NONE; seen = 0; flagged = false; fenced = false; refused = false
    };
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
         epoch = me; owner = me; claimed = true; lease_over = false; early = false; far = false;
         holds[me] = true;
#ifndef FORGETS_HOLDS
         knows_hold = hold
#endif
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
    d_step { answered = NONE; refused = false };
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
    refused = false;
    if
    :: fenced -> holds[me] = false; disown(); goto idle
    :: !fenced && next == NONE                     /* go on below */
    :: !fenced && next != NONE ->
send:
       if
       :: d_step { holds[me] -> sending[me] = true };
          if
          :: receive(next)
          :: d_step { next == 0 && refusals < MAX_REFUSALS -> refusals++; refused = true }
          fi;
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
            :: else -> lease_over = false; early = false; far = false; holds[me] = true
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
  } unless {
    d_step {
      crashing == me || ending[me] ->
      ending[me] = false; holds[me] = false; sending[me] = false; heard[me] = false; knows_hold = false;
      if :: crashing == me -> crashing = NONE :: else fi
    }
  };
  goto start                                       /* its successor knows nothing */
}

init { atomic { run publisher(); run faults(); run worker(0); run worker(1) } }
