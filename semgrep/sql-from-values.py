# ok: sql-from-values
LEAF = "delivery_open"
# ok: sql-from-values
FINISHED = f"SELECT * FROM {leaf_of(LEAF)}"
# ok: sql-from-values
READ = "SELECT " + columns() + " FROM delivery_open"


def read(cursor, subscriber, names, wanted):
    # ruleid: sql-from-values
    cursor.execute(f"SELECT * FROM {LEAF} WHERE subscriber = '{subscriber}'")
    # ruleid: sql-from-values
    cursor.execute("SELECT * FROM delivery_open WHERE subscriber = '%s'" % subscriber)
    # ruleid: sql-from-values
    cursor.execute("SELECT * FROM delivery_open WHERE id IN ({})".format(",".join(names)))
    # ruleid: sql-from-values
    cursor.execute("SELECT * FROM delivery_open WHERE " + wanted)
    # ruleid: sql-from-values
    cursor.execute("LISTEN " + wanted)
    # ruleid: sql-from-values
    Delivery.objects.raw(f"SELECT * FROM delivery_open ORDER BY {wanted}")
    # ruleid: sql-from-values
    Delivery.objects.extra(f"{wanted} > 5")
    # ruleid: sql-from-values
    statement = f"DELETE FROM delivery_open WHERE {wanted}"
    # ruleid: sql-from-values
    statement = "UPDATE delivery_open SET status = 'x' WHERE %s" % wanted

    # ok: sql-from-values
    cursor.execute(f"SELECT * FROM {LEAF} WHERE subscriber = %s", [subscriber])
    # ok: sql-from-values
    cursor.execute("SELECT * FROM " + LEAF + " WHERE subscriber = %s", [subscriber])
    # ok: sql-from-values
    cursor.execute(statements.READ.format(LEAF), [subscriber])
    # ok: sql-from-values
    cursor.execute(READ, [subscriber])
    # ok: sql-from-values
    cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(wanted)))
    # ok: sql-from-values
    Delivery.objects.filter(subscriber=subscriber)
    # ok: sql-from-values
    text = f"Updated {len(names)} of them; set them free from the list."
    # ok: sql-from-values
    path = f"{subscriber}/select"
    # ok: sql-from-values
    log.info("line.read", subscriber=subscriber)
    # ok: sql-from-values
    total = "%d of %d" % (len(names), wanted)
    # ok: sql-from-values
    return statement


async def count(cursor, wanted):
    # ruleid: sql-from-values
    await cursor.execute(f"{wanted}")
    # ruleid: sql-from-values
    return f"""WITH wanted AS (SELECT id
        FROM delivery_open WHERE {wanted})
        """
