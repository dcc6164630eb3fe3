"""Rebuilds the still empty big tables as partitioned ones; to Django they stay what they were."""

from django.db import migrations

from delivery.maintenance import partitions
from delivery.statuses import LEGAL_CHANGES, UNFINISHED, WaitsFor
from subscriptions.names import OWN_EVENTS

REBUILD = """
ALTER TABLE {t} RENAME TO old_{t};
CREATE TABLE {t} (LIKE old_{t} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) PARTITION BY RANGE ({by});
DROP TABLE old_{t};
CREATE SEQUENCE {t}_id_seq OWNED BY {t}.id;
ALTER TABLE {t} ALTER COLUMN id SET DEFAULT nextval('{t}_id_seq'), ADD CONSTRAINT {t}_pkey PRIMARY KEY ({pk});
"""

OPEN_LEAF = """
-- A transaction has an id before its deliveries have: so those over which no floor may pass are known (decision 0064).
CREATE FUNCTION next_delivery_id() RETURNS bigint LANGUAGE sql AS $$
  SELECT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('delivery_delivery_id_seq') END $$;
ALTER TABLE delivery_delivery ALTER COLUMN id SET DEFAULT next_delivery_id();

-- For statements that need few messages: a join sets up the partitions of all days, and this the message's only.
CREATE FUNCTION message_of(wanted bigint) RETURNS SETOF delivery_message LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
  RETURN QUERY SELECT * FROM delivery_message WHERE id = wanted;
END $$;

CREATE INDEX attempt_delivery ON delivery_attempt (delivery_id);
CREATE INDEX message_publisher ON delivery_message (publisher_id, id);
CREATE INDEX message_event_type ON delivery_message (event_type_id, id);
CREATE INDEX message_astray ON delivery_message (outcome, id) WHERE outcome <> 'ROUTED';
CREATE INDEX message_copy ON delivery_message (copy_of) WHERE copy_of IS NOT NULL;
ALTER TABLE delivery_line SET (fillfactor = 50, {vacuum}), DROP CONSTRAINT delivery_line_pkey, ADD PRIMARY KEY (id, epoch);

CREATE TABLE delivery_open PARTITION OF delivery_delivery FOR VALUES FROM ('9999-12-31') TO (MAXVALUE)
  WITH (fillfactor = 50, autovacuum_vacuum_threshold = 20000, {churn});
-- Each partition has a check of its own, which is short: the server parses it for every statement.
ALTER TABLE delivery_open ADD CONSTRAINT delivery_open_or_filed CHECK (
  status = ANY ({unfinished}) AND (status = 'HELD') = (waits_for = 'RELEASE')
  AND (fetched_until IS NOT NULL) = (waits_for = 'RETURN') AND (due_at IS NOT NULL) = (waits_for = 'RETRY'));

-- No index mentions the status or the number, so marking a delivery as under way touches no index. A new one is in
-- three: its key, this one and its message's.
CREATE INDEX delivery_open_turn ON delivery_open (subscription_id, id) WHERE waits_for = 'TURN';
-- All others. Two indexes, so that the planner uses neither for statements that look for ids.
CREATE INDEX delivery_open_waits_for ON delivery_open (waits_for, subscription_id, id) WHERE waits_for <> 'TURN';
-- By line, so that neither of a subscriber's two meets what waits in the other: first those to be tried again. Their
-- statements speak of the moment and not of what they wait for, so that none that sends takes to the last one.
CREATE INDEX delivery_open_line ON delivery_open (subscription_id, line_id, due_at, id)
  WHERE due_at IS NOT NULL OR waits_for = 'RELEASE';
-- What is HELD, of any subscription.
CREATE INDEX delivery_open_release ON delivery_open (id) WHERE waits_for = 'RELEASE';
-- Delayed deliveries by the time at which they begin, and those with a time to live by the time at which they expire:
-- each index has the next one first. LIKE keeps the planner from using another index for the statement that begins
-- delayed deliveries. What a client has fetched expires only after its time-out.
CREATE INDEX delivery_open_start ON delivery_open (not_before, id) WHERE waits_for LIKE 'START';
CREATE INDEX delivery_open_expiring ON delivery_open (GREATEST(expires_at, fetched_until)) WHERE expires_at IS NOT NULL;
-- What clients have fetched, by when that times out; and what was returned to them.
CREATE INDEX delivery_open_fetched ON delivery_open (subscription_id, fetched_until, id)
  WHERE fetched_until IS NOT NULL;
-- By ordering key: only of subscribers that name one. A page walks from key to key here, past those that are busy.
CREATE INDEX delivery_open_key ON delivery_open (subscription_id, ordering_key, id)
  WHERE waits_for = 'TURN' AND ordering_key IS NOT NULL;
CREATE INDEX delivery_open_fetches ON delivery_open (subscription_id, id) WHERE fetches > 0 AND waits_for = 'TURN';
CREATE INDEX delivery_open_message ON delivery_open (message_id);
-- What a diversion was to be tried with next, and has not been.
CREATE INDEX delivery_open_untried ON delivery_open (subscription_id) WHERE due_at IS NOT NULL AND attempts = 0;
CREATE INDEX delivery_open_repeated ON delivery_open (resubmit_of) WHERE resubmit_of IS NOT NULL;

-- Compressing a long list of ids would take longer than all else that is done for its page.
ALTER TABLE delivery_pageread SET (toast_tuple_target = 8160, autovacuum_vacuum_threshold = 5000, {churn});
ALTER TABLE delivery_hold SET (autovacuum_vacuum_threshold = 5000, {churn});
ALTER TABLE delivery_announcement SET (autovacuum_vacuum_threshold = 5000, {churn});
ALTER TABLE delivery_queuegroup SET (fillfactor = 50, autovacuum_vacuum_threshold = 20000, {churn});

-- One place decides which changes of a status are legal (contract 10.2), and every other change is refused. The mark
-- of each delivery is not looked at: the server parses the condition for every statement, and all these names take longer
-- than the rest of a mark.
CREATE FUNCTION refuse_illegal_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status <> NEW.status AND NEW.status = ANY ({known})
     AND (OLD.status || '>' || NEW.status) <> ALL ({legal}) THEN
    RAISE EXCEPTION 'from % to % is no legal change of a delivery''s status', OLD.status, NEW.status
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER legal_change BEFORE UPDATE OF status ON delivery_delivery FOR EACH ROW
  WHEN (OLD.status <> 'PENDING' OR NEW.status <> 'IN_FLIGHT') EXECUTE FUNCTION refuse_illegal_change();

-- What waits for its turn again, in its old place, is not below the floor of searches.
ALTER TABLE delivery_turnfloor SET UNLOGGED, SET ({vacuum}), DROP CONSTRAINT delivery_turnfloor_pkey,
  ADD PRIMARY KEY (id, noted_xid);
CREATE FUNCTION lower_turn_floor() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  noted delivery_turnfloor;
BEGIN
  IF TG_TABLE_NAME = 'delivery_queuegroup' THEN
    SELECT * INTO noted FROM delivery_turnfloor WHERE line_id = NEW.line_id ORDER BY noted_xid DESC LIMIT 1;
  ELSE
    SELECT * INTO noted FROM delivery_turnfloor
     WHERE subscription_id = NEW.subscription_id ORDER BY noted_xid DESC LIMIT 1;
  END IF;
  IF GREATEST(noted.floor, noted.older, noted.newer) > NEW.id THEN
    -- One transaction at a time: two that lower several floors would lock them in different orders.
    PERFORM pg_advisory_xact_lock(hashtext('delivery.lower_turn_floor'));
    UPDATE delivery_turnfloor
       SET floor = LEAST(floor, NEW.id), older = LEAST(older, NEW.id), newer = LEAST(newer, NEW.id)
     WHERE id = noted.id AND noted_xid >= noted.noted_xid;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER turn_again AFTER UPDATE OF waits_for ON delivery_open FOR EACH ROW
  WHEN (OLD.waits_for <> 'TURN' AND NEW.waits_for = 'TURN') EXECUTE FUNCTION lower_turn_floor();
CREATE TRIGGER turn_again AFTER UPDATE OF waits_for ON delivery_queuegroup FOR EACH ROW
  WHEN (OLD.waits_for <> 'TURN' AND NEW.waits_for = 'TURN') EXECUTE FUNCTION lower_turn_floor();

-- Its one row says in which database, of which server, the ids and numbers were given (decision 0062).
CREATE TABLE delivery_incarnation (
  id uuid PRIMARY KEY, identity text NOT NULL, begun_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE UNIQUE INDEX delivery_incarnation_one_row ON delivery_incarnation ((true));

-- The server, its timeline, the database and the table; NULL on a standby. A service may hide the first two.
CREATE FUNCTION database_identity() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  server text;
  timeline text;
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN NULL;
  END IF;
  BEGIN
    server := (SELECT system_identifier FROM pg_control_system());
  EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
  END;
  BEGIN
    timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
  EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
  END;
  RETURN concat_ws('/', server, timeline, (SELECT oid FROM pg_database WHERE datname = current_database()),
                   'delivery_incarnation'::regclass::oid);
END $$;
INSERT INTO delivery_incarnation (id, identity) SELECT gen_random_uuid(), database_identity();

-- Every subscriber has its lines from the start: neither publishing nor settling need ask.
CREATE FUNCTION give_subscriber_its_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO delivery_line (subscriber_id, lane) VALUES (NEW.id, 'main'), (NEW.id, 'retry');
  RETURN NULL;
END $$;
CREATE TRIGGER lines AFTER INSERT ON subscriptions_subscriber FOR EACH ROW EXECUTE FUNCTION give_subscriber_its_lines();

-- A subscription with a rate limit has its pace from then on: without one it would never be sent.
ALTER TABLE delivery_pace
  SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
       {vacuum}, vacuum_truncate = false),
  ADD CONSTRAINT delivery_pace_subscription
      FOREIGN KEY (subscription_id) REFERENCES subscriptions_subscription (id) ON DELETE CASCADE;
CREATE FUNCTION give_subscription_its_pace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO delivery_pace (subscription_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER pace AFTER INSERT OR UPDATE OF rate_limit ON subscriptions_subscription FOR EACH ROW
  WHEN (NEW.rate_limit IS NOT NULL) EXECUTE FUNCTION give_subscription_its_pace();

-- A switch to PULL ends a suspension: told like every other end of one, in the transaction that ends it (contract 5.7).
CREATE FUNCTION tell_that_suspension_is_over() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  why text := 'it is fetched from now on';
  events text := COALESCE((SELECT name FROM subscriptions_eventtype WHERE id = NEW.event_type_id), NEW.event_pattern);
BEGIN
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
    SELECT id, clock_timestamp(), 'RESUMED', 'subscription ' || NEW.id || ': ' || why
      FROM delivery_line WHERE subscriber_id = NEW.subscriber_id AND lane = 'main';
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, details)
    SELECT '{own}Line.Resumed', id, NEW.id, jsonb_build_object('pause', 'SUSPENDED', 'reason', why)
      FROM delivery_line
     WHERE subscriber_id = NEW.subscriber_id AND lane = 'main' AND NOT starts_with(events, '{own}');
  RETURN NULL;
END $$;
CREATE TRIGGER suspension_over AFTER UPDATE OF delivery_mode ON subscriptions_subscription FOR EACH ROW
  WHEN (OLD.paused_by = 'POLICY' AND NEW.paused_by = '' AND OLD.delivery_mode <> NEW.delivery_mode)
  EXECUTE FUNCTION tell_that_suspension_is_over();

-- A line's history has the beginning and the end of each diversion (contract 5.10). When it ends, an unsent probe goes
-- back to its place in the main line.
CREATE FUNCTION note_diversion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.diverted_since IS NULL THEN
    UPDATE delivery_open d SET line_id = w.line_id, waits_for = 'TURN', due_at = NULL
      FROM (SELECT d.id, m.id AS line_id FROM delivery_line m
              JOIN delivery_line r ON r.subscriber_id = m.subscriber_id AND r.lane = 'retry'
              JOIN delivery_open d ON d.subscription_id = NEW.id AND d.line_id = r.id AND d.due_at IS NOT NULL
                   AND d.status = 'PENDING' AND d.attempts = 0 AND NOT d.uncertain
             WHERE m.subscriber_id = NEW.subscriber_id AND m.lane = 'main'
               FOR UPDATE OF d SKIP LOCKED) w
     WHERE d.id = w.id;
  END IF;
  INSERT INTO delivery_lineevent (line_id, at, kind, reason)
    SELECT id, clock_timestamp(), CASE WHEN NEW.diverted_since IS NULL THEN 'DIVERSION_ENDED' ELSE 'DIVERTED' END,
           'subscription ' || NEW.id
      FROM delivery_line WHERE subscriber_id = NEW.subscriber_id AND lane = 'main';
  RETURN NULL;
END $$;
CREATE TRIGGER diversion AFTER UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN ((OLD.diverted_since IS NULL) <> (NEW.diverted_since IS NULL)) EXECUTE FUNCTION note_diversion();

-- Deleting a subscription with unfinished deliveries is refused (contract 1.8, decision 0052). With a foreign key, each
-- publish would lock the rows of its subscriptions. The lock waits for all transactions that may have chosen it.
CREATE FUNCTION refuse_subscription_in_use() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  LOCK TABLE subscriptions_subscription IN EXCLUSIVE MODE;
  IF EXISTS (SELECT FROM delivery_open WHERE subscription_id = OLD.id AND waits_for = 'TURN')
     OR EXISTS (SELECT FROM delivery_open WHERE subscription_id = OLD.id AND waits_for = ANY ({aside})) THEN
    RAISE EXCEPTION 'subscription % has unfinished deliveries', OLD.id
      USING ERRCODE = 'foreign_key_violation', TABLE = 'delivery_open';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER in_use BEFORE DELETE ON subscriptions_subscription
  FOR EACH ROW EXECUTE FUNCTION refuse_subscription_in_use();

-- Deliveries that are published before their subscriber first names a path have no ordering key; all later ones have
-- one (decision 0055). The lock, as above, waits for publishers that may not have seen the path, and new ones wait for
-- this change. An UPDATE of all columns leaves `keyless_until` as it is.
CREATE FUNCTION note_first_path() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    NEW.keyless_until := CASE WHEN NEW.ordering_key <> '' THEN 0 END;
  ELSIF OLD.keyless_until IS NOT NULL OR NEW.ordering_key = '' THEN
    NEW.keyless_until := OLD.keyless_until;
  ELSE
    LOCK TABLE subscriptions_subscription IN EXCLUSIVE MODE;
    NEW.keyless_until := (SELECT last_value FROM delivery_delivery_id_seq);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER begins_with_path BEFORE INSERT ON subscriptions_subscriber
  FOR EACH ROW EXECUTE FUNCTION note_first_path();
CREATE TRIGGER first_path BEFORE UPDATE ON subscriptions_subscriber FOR EACH ROW
  WHEN (OLD.ordering_key <> NEW.ordering_key OR OLD.keyless_until IS DISTINCT FROM NEW.keyless_until)
  EXECUTE FUNCTION note_first_path();

-- A job under way is not deleted with its subscription: whoever watches it would find it gone.
CREATE FUNCTION refuse_running_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'replay % is under way', OLD.id USING ERRCODE = 'foreign_key_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER under_way BEFORE DELETE ON delivery_replay FOR EACH ROW
  WHEN (OLD.finished_at IS NULL) EXECUTE FUNCTION refuse_running_job();
"""


VACUUM = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 2000"
"""Of tables whose rows come and go: while a snapshot keeps all that has died, `autovacuum` reads them again and again and
removes nothing. 2,000 pages take it 10 to 25 ms, and then it pauses. What it can remove still goes fast enough.
"""
CHURN = f"""autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_threshold = 2000000000, {VACUUM},
  vacuum_truncate = false"""
"""The same, and no statistics. Pages are kept: giving them back takes a lock that stops everybody, and the next burst
needs them again.
"""


def array(texts):
    return "'{" + ",".join(sorted(texts)) + "}'::text[]"


def open_today(apps, schema_editor):
    partitions.open_days(partitions.today())


class Migration(migrations.Migration):
    dependencies = [("delivery", "0001_initial"), ("subscriptions", "0002_versions_and_fixed_columns")]
    operations = [
        migrations.RunSQL(
            [
                REBUILD.format(t=t, by=by, pk=pk)
                for t, by, pk in (
                    ("delivery_message", "id", "id"),
                    ("delivery_attempt", "id", "id"),
                    ("delivery_delivery", "closed_on", "id, closed_on"),
                )
            ]
            + [
                OPEN_LEAF.format(
                    own=OWN_EVENTS,
                    unfinished=array(UNFINISHED),
                    known=array(LEGAL_CHANGES),
                    legal=array(f"{old}>{new}" for old, news in LEGAL_CHANGES.items() for new in news),
                    aside=array({*WaitsFor} - {WaitsFor.TURN}),
                    vacuum=VACUUM,
                    churn=CHURN,
                )
            ],
            migrations.RunSQL.noop,
        ),
        migrations.RunPython(open_today, migrations.RunPython.noop),
    ]
