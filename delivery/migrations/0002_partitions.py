"""Rebuilds the still empty big tables as partitioned ones; to Django they stay what they were."""

import datetime as dt

from django.db import migrations

from delivery.maintenance import partitions
from delivery.statuses import FINAL, LEGAL_CHANGES, UNFINISHED, WaitsFor
from subscriptions.names import OWN_EVENTS

REBUILD = """
ALTER TABLE {t} RENAME TO old_{t};
CREATE TABLE {t} (LIKE old_{t} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) PARTITION BY RANGE ({by});
DROP TABLE old_{t};
CREATE SEQUENCE {t}_id_seq OWNED BY {t}.id;
ALTER TABLE {t} ALTER COLUMN id SET DEFAULT nextval('{t}_id_seq'), ADD CONSTRAINT {t}_pkey PRIMARY KEY ({pk});
"""

OPEN_LEAF = """
CREATE INDEX attempt_delivery ON delivery_attempt (delivery_id);
CREATE INDEX message_publisher ON delivery_message (publisher_id, id);
CREATE INDEX message_event_type ON delivery_message (event_type_id, id);
CREATE INDEX message_astray ON delivery_message (outcome, id) WHERE outcome <> 'ROUTED';
CREATE INDEX message_copy ON delivery_message (copy_of) WHERE copy_of IS NOT NULL;
ALTER TABLE delivery_line SET (fillfactor = 50);

-- The same as in the model, with fewer parts: the server sets every part up anew for each statement.
ALTER TABLE delivery_delivery DROP CONSTRAINT delivery_open_or_filed, ADD CONSTRAINT delivery_open_or_filed CHECK (
  CASE closed_on WHEN '9999-12-31' THEN status = ANY ({unfinished}) AND (status = 'HELD') = (waits_for = 'RELEASE')
                                        AND (fetched_until IS NOT NULL) = (waits_for = 'RETURN')
                 ELSE status = ANY ({final}) AND finished_at IS NOT NULL END
  AND (due_at IS NOT NULL) = (waits_for = 'RETRY'));

CREATE TABLE delivery_open PARTITION OF delivery_delivery FOR VALUES FROM ('9999-12-31') TO (MAXVALUE)
  WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000,
        -- A statement planned while the queue has no pages at all would read the next burst by sequential scan.
        vacuum_truncate = false);

-- No index mentions the status or the number, so marking a delivery as under way touches no index. A new one is in
-- three: its key, this one and its message's.
CREATE INDEX delivery_open_turn ON delivery_open (subscription_id, id) WHERE waits_for = 'TURN';
-- All others. Two indexes, so that the planner uses neither for statements that look for ids.
CREATE INDEX delivery_open_aside ON delivery_open (waits_for, subscription_id, id) WHERE waits_for <> 'TURN';
-- By line, so that neither of a subscriber's two meets what waits in the other: first those to be tried again. Their
-- statements speak of the moment and not of what they wait for, so that none that sends takes to the last one.
CREATE INDEX delivery_open_apart ON delivery_open (subscription_id, line_id, due_at, id)
  WHERE due_at IS NOT NULL OR waits_for = 'RELEASE';
-- What is HELD, whose subscription it may be.
CREATE INDEX delivery_open_held ON delivery_open (id) WHERE waits_for = 'RELEASE';
-- What is delayed, and what has a time to live: whatever else waits, the next of them is the first one here; what a
-- client has fetched, once that has timed out too.
CREATE INDEX delivery_open_delayed ON delivery_open (not_before, id) WHERE waits_for = 'START';
CREATE INDEX delivery_open_expiring ON delivery_open (GREATEST(expires_at, fetched_until)) WHERE expires_at IS NOT NULL;
-- What clients have fetched, by when that times out; and what was returned to them.
CREATE INDEX delivery_open_fetched ON delivery_open (subscription_id, fetched_until, id)
  WHERE fetched_until IS NOT NULL;
-- By ordering key: only of subscribers that name one. A page walks from key to key here, past those that are busy.
CREATE INDEX delivery_open_key ON delivery_open (subscription_id, ordering_key, id)
  WHERE waits_for = 'TURN' AND ordering_key IS NOT NULL;
CREATE INDEX delivery_open_returned ON delivery_open (subscription_id, id) WHERE fetches > 0 AND waits_for = 'TURN';
CREATE INDEX delivery_open_message ON delivery_open (message_id);
CREATE INDEX delivery_open_repeated ON delivery_open (resubmit_of) WHERE resubmit_of IS NOT NULL;

ALTER TABLE delivery_pageread SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                                   autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000,
                                   vacuum_truncate = false);
ALTER TABLE delivery_hold SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                               autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000,
                               vacuum_truncate = false);
ALTER TABLE delivery_announcement SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                                       autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000,
                                       vacuum_truncate = false);

ALTER TABLE delivery_queuegroup SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
                                     autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
                                     autovacuum_analyze_threshold = 2000000000, vacuum_truncate = false);

-- Which change of a status is legal is decided in one place (contract 10.2); whoever writes another is refused.
CREATE TRIGGER legal_change BEFORE UPDATE OF status ON delivery_delivery FOR EACH ROW
  WHEN (OLD.status <> NEW.status AND NEW.status = ANY ({known})
        AND (OLD.status || '>' || NEW.status) <> ALL ({legal}))
  EXECUTE FUNCTION refuse_change('what is no legal change of a delivery''s status: it');

-- Every subscriber has its lines from the start: neither publishing nor settling need ask.
CREATE FUNCTION give_subscriber_its_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO delivery_line (subscriber_id, lane) VALUES (NEW.id, 'main'), (NEW.id, 'retry');
  RETURN NULL;
END $$;
CREATE TRIGGER lines AFTER INSERT ON subscriptions_subscriber FOR EACH ROW EXECUTE FUNCTION give_subscriber_its_lines();
INSERT INTO delivery_line (subscriber_id, lane)
  SELECT id, lane FROM subscriptions_subscriber CROSS JOIN (VALUES ('main'), ('retry')) AS lanes (lane) ORDER BY id, lane;

-- A subscription with a rate limit has its pace from then on: without one it would never be sent.
ALTER TABLE delivery_pace
  SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
       autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false),
  ADD CONSTRAINT delivery_pace_subscription
      FOREIGN KEY (subscription_id) REFERENCES subscriptions_subscription (id) ON DELETE CASCADE;
CREATE FUNCTION give_subscription_its_pace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO delivery_pace (subscription_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER pace AFTER INSERT OR UPDATE OF rate_limit ON subscriptions_subscription FOR EACH ROW
  WHEN (NEW.rate_limit IS NOT NULL) EXECUTE FUNCTION give_subscription_its_pace();
INSERT INTO delivery_pace (subscription_id) SELECT id FROM subscriptions_subscription WHERE rate_limit IS NOT NULL;

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

-- The planner's picture of well-filled queues, taken once and kept: what a moment holds, an empty one or one of a single
-- kind, makes it search the queues from one end on or sort them, and ANALYZE (by hand, after an upgrade) would have that
-- believed from then on. Called again after a restore that has left the picture out.
CREATE FUNCTION delivery_picture_queues() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at, not_before,
                             expires_at, fetches, fetched_until)
    SELECT -g / 10, g % 100, g % 100, CASE WHEN f.is_out THEN 'IN_FLIGHT' ELSE 'PENDING' END, 1000,
           CASE WHEN g % 10 = 0 THEN 'RETRY' WHEN g / 100 % 100 = 1 THEN 'START' WHEN f.is_out THEN 'RETURN'
                ELSE 'TURN' END, CASE WHEN g % 10 = 0 THEN now() END,
           CASE WHEN g % 10 > 0 AND g / 100 % 100 = 1 THEN now() END, CASE WHEN g / 100 % 100 = 2 THEN now() END,
           f.is_out::int, CASE WHEN f.is_out THEN now() END
      FROM generate_series(10, 100009) g
     CROSS JOIN LATERAL (SELECT g % 10 > 0 AND g / 100 % 100 IN (3, 4) AS is_out) f;
  INSERT INTO delivery_pageread (line_id, delivery_ids) SELECT -g, ARRAY[g] FROM generate_series(1, 10000) g;
  INSERT INTO delivery_hold (delivery_id, line_id, due_at)
    SELECT -g, -g / 5, now() + g * interval '1 s' FROM generate_series(1, 10000) g;
  INSERT INTO delivery_queuegroup (message_id, line_id, delivery_ids, size, waits_for, due_at)
    SELECT -g, g % 5, ARRAY[g], 1000, CASE WHEN g % 10 = 0 THEN 'RETRY' ELSE 'TURN' END,
           CASE WHEN g % 10 = 0 THEN now() END FROM generate_series(1, 100000) g;
  PERFORM delivery_gather_statistics(-1);
  ANALYZE delivery_open, delivery_pageread, delivery_hold, delivery_queuegroup;
  PERFORM delivery_gather_statistics(0);
  DELETE FROM delivery_open WHERE message_id < 0;
  DELETE FROM delivery_queuegroup WHERE message_id < 0;
  DELETE FROM delivery_pageread WHERE line_id < 0;
  DELETE FROM delivery_hold WHERE delivery_id < 0;
END $$;
CREATE FUNCTION delivery_gather_statistics(wanted int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c record;
BEGIN
  FOR c IN SELECT a.attrelid::regclass AS name, a.attname, a.attnum, i.indrelid
             FROM pg_attribute a LEFT JOIN pg_index i ON i.indexrelid = a.attrelid
            WHERE COALESCE(i.indrelid, a.attrelid) = ANY (
                    '{{delivery_open, delivery_pageread, delivery_hold, delivery_announcement,
                      delivery_queuegroup}}'::regclass[])
              AND a.attnum > 0 AND NOT a.attisdropped AND (i.indrelid IS NULL OR i.indkey[a.attnum - 1] = 0)
  LOOP
    EXECUTE format(CASE WHEN c.indrelid IS NULL THEN 'ALTER TABLE %1$s ALTER COLUMN %2$I SET STATISTICS %4$s'
                   ELSE 'ALTER INDEX %1$s ALTER COLUMN %3$s SET STATISTICS %4$s' END,
                   c.name, c.attname, c.attnum, wanted);
  END LOOP;
END $$;
SELECT delivery_picture_queues();

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

-- A job under way is not deleted with its subscription: whoever watches it would find it gone.
CREATE FUNCTION refuse_running_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'replay % is under way', OLD.id USING ERRCODE = 'foreign_key_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER under_way BEFORE DELETE ON delivery_replay FOR EACH ROW
  WHEN (OLD.finished_at IS NULL) EXECUTE FUNCTION refuse_running_job();
"""


def array(texts):
    return "'{" + ",".join(sorted(texts)) + "}'::text[]"


KNOWN = array(LEGAL_CHANGES)
ASIDE = array({*WaitsFor} - {WaitsFor.TURN})
LEGAL = array(f"{old}>{new}" for old, news in LEGAL_CHANGES.items() for new in news)


def open_today(apps, schema_editor):
    partitions.open_days(dt.datetime.now(dt.UTC).date())


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
                    final=array(FINAL),
                    known=KNOWN,
                    legal=LEGAL,
                    aside=ASIDE,
                )
            ],
            migrations.RunSQL.noop,
        ),
        migrations.RunPython(open_today, migrations.RunPython.noop),
    ]
