"""The database raises versions, refuses changes of what is fixed (contract 1.1, 1.4), and finds who wants a message."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from subscriptions.presets import install

RAISE_VERSION = """
CREATE FUNCTION raise_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('broker.resealing', true) = 'yes' THEN
    RETURN NEW;  -- what it says is the same, under another key
  END IF;
  NEW.version := OLD.version + 1;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER raise_version BEFORE UPDATE ON subscriptions_eventtype FOR EACH ROW EXECUTE FUNCTION raise_version();
CREATE TRIGGER raise_version BEFORE UPDATE ON subscriptions_publisher FOR EACH ROW EXECUTE FUNCTION raise_version();
CREATE TRIGGER raise_version BEFORE UPDATE ON subscriptions_retrypolicy FOR EACH ROW EXECUTE FUNCTION raise_version();
CREATE TRIGGER raise_version BEFORE UPDATE ON subscriptions_subscriber FOR EACH ROW EXECUTE FUNCTION raise_version();
-- When the next probe is due says nothing of how it is sent.
CREATE TRIGGER raise_version BEFORE UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN (OLD.probe_due_at IS NOT DISTINCT FROM NEW.probe_due_at
        OR (OLD.paused_by, OLD.half_open) IS DISTINCT FROM (NEW.paused_by, NEW.half_open))
  EXECUTE FUNCTION raise_version();
CREATE TRIGGER raise_version BEFORE UPDATE OF label, expires_at, retires_at, revoked_at, requests_per_minute
  ON subscriptions_apikey
  FOR EACH ROW EXECUTE FUNCTION raise_version();
"""

END_DIVERSION = """
-- After any change the endpoint is tried in the main line again (contract 5.10).
CREATE FUNCTION end_diversion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('broker.resealing', true) IS DISTINCT FROM 'yes' THEN
    NEW.diverted_since := NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER diversion_over BEFORE UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN (OLD.diverted_since = NEW.diverted_since) EXECUTE FUNCTION end_diversion();
"""

REFUSE_CHANGES = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is fixed after creation', TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER fixed BEFORE UPDATE ON subscriptions_eventtype FOR EACH ROW
  WHEN (OLD.name IS DISTINCT FROM NEW.name OR OLD.kind IS DISTINCT FROM NEW.kind)
  EXECUTE FUNCTION refuse_change('name and kind of an event type');
CREATE TRIGGER fixed BEFORE UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN ((OLD.subscriber_id, OLD.event_type_id, OLD.event_pattern)
        IS DISTINCT FROM (NEW.subscriber_id, NEW.event_type_id, NEW.event_pattern))
  EXECUTE FUNCTION refuse_change('subscriber and event type of a subscription');
CREATE TRIGGER fixed BEFORE UPDATE ON subscriptions_apikey FOR EACH ROW
  WHEN ((OLD.kind, OLD.publisher_id, OLD.subscriber_id, OLD.digest, OLD.scopes)
        IS DISTINCT FROM (NEW.kind, NEW.publisher_id, NEW.subscriber_id, NEW.digest, NEW.scopes))
  EXECUTE FUNCTION refuse_change('whose an API key is and what it opens');
CREATE TRIGGER ended BEFORE UPDATE ON subscriptions_apikey FOR EACH ROW
  WHEN (OLD.revoked_at < COALESCE(NEW.revoked_at, 'infinity') OR OLD.retires_at < COALESCE(NEW.retires_at, 'infinity'))
  EXECUTE FUNCTION refuse_change('the end of an API key that was revoked or rotated');
CREATE TRIGGER fixed BEFORE UPDATE ON subscriptions_retrypolicy FOR EACH ROW
  WHEN (OLD.is_preset OR NEW.is_preset) EXECUTE FUNCTION refuse_change('a retry policy that came installed');
CREATE TRIGGER kept BEFORE DELETE ON subscriptions_retrypolicy FOR EACH ROW
  WHEN (OLD.is_preset) EXECUTE FUNCTION refuse_change('a retry policy that came installed');
"""

POLICY_CHANGES = """
-- Lines tell by the version of a subscription that what they have in hand is out of date. Locked in the order in which
-- whoever pauses many does.
CREATE FUNCTION raise_versions_of_followers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM subscriptions_subscription WHERE retry_policy_id = NEW.id ORDER BY id FOR NO KEY UPDATE;
  UPDATE subscriptions_subscription SET updated_at = clock_timestamp() WHERE retry_policy_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER policy_changed AFTER UPDATE ON subscriptions_retrypolicy
  FOR EACH ROW EXECUTE FUNCTION raise_versions_of_followers();
"""

CANDIDATES = """
-- A filter written without its term is still found: by none, which costs time and loses nothing.
CREATE FUNCTION forget_filter_term() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.filter_term := '';
  RETURN NEW;
END $$;
CREATE TRIGGER stale_filter_term BEFORE INSERT OR UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN (NEW.filter_term <> '' AND right(NEW.filter_term, 32) <> md5(NEW.filter))
  EXECUTE FUNCTION forget_filter_term();

-- A header filter may be longer than an index entry.
CREATE INDEX subscription_candidates ON subscriptions_subscription
  (COALESCE(event_type_id, 0), event_pattern, md5(header_filter_string), filter_term) WHERE status = 'ACTIVE';
"""

KIND = """
CREATE FUNCTION take_over_kind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.kind := COALESCE((SELECT kind FROM subscriptions_eventtype WHERE id = NEW.event_type_id), 'TOPIC');
  RETURN NEW;
END $$;
CREATE TRIGGER kind BEFORE INSERT OR UPDATE OF kind ON subscriptions_subscription
  FOR EACH ROW EXECUTE FUNCTION take_over_kind();
"""

STATUS_CHANGES = """
CREATE FUNCTION note_status_of_subscriber() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO subscriptions_statuschange (subscriber_id, status, processing_before, at)
  VALUES (NEW.id, NEW.status, OLD.processing, clock_timestamp());
  RETURN NULL;
END $$;
CREATE FUNCTION note_status_of_subscription() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO subscriptions_statuschange (subscriber_id, subscription_id, status, at)
  VALUES (NEW.subscriber_id, NEW.id, NEW.status, clock_timestamp());
  RETURN NULL;
END $$;
CREATE TRIGGER status_changed AFTER UPDATE ON subscriptions_subscriber FOR EACH ROW
  WHEN (OLD.status <> NEW.status OR OLD.processing <> NEW.processing) EXECUTE FUNCTION note_status_of_subscriber();
CREATE TRIGGER status_changed AFTER UPDATE ON subscriptions_subscription FOR EACH ROW
  WHEN (OLD.status <> NEW.status OR (OLD.paused_since IS NULL) <> (NEW.paused_since IS NULL)
        OR (OLD.diverted_since IS NULL) <> (NEW.diverted_since IS NULL) OR OLD.delivery_mode <> NEW.delivery_mode)
  EXECUTE FUNCTION note_status_of_subscription();
"""

UNDO = """
DROP FUNCTION raise_versions_of_followers() CASCADE;
DROP FUNCTION note_status_of_subscription() CASCADE;
DROP FUNCTION note_status_of_subscriber() CASCADE;
DROP INDEX subscription_candidates;
DROP FUNCTION take_over_kind() CASCADE;
DROP FUNCTION forget_filter_term() CASCADE;
DROP FUNCTION end_diversion() CASCADE;
DROP FUNCTION raise_version() CASCADE;
DROP FUNCTION refuse_change() CASCADE;
"""


def install_all(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    """Install what comes with the broker."""
    install(apps)


class Migration(migrations.Migration):
    dependencies = [("subscriptions", "0001_initial")]
    operations = [
        migrations.RunSQL(
            RAISE_VERSION + END_DIVERSION + REFUSE_CHANGES + POLICY_CHANGES + CANDIDATES + KIND + STATUS_CHANGES,
            UNDO,
        ),
        migrations.RunPython(install_all, migrations.RunPython.noop),
    ]
