"""The Spark session has what results depend on, whatever a user's configuration says."""

from bridge import session


def test_required_settings_hold(spark):
    for key, value in session.REQUIRED.items():
        assert value in spark.conf.get(key)


def test_forks_have_settings_and_views_of_their_own(spark):
    one, other = session.fork(spark), session.fork(spark)
    one.conf.set("spark.databricks.delta.write.txnVersion", "5")
    one.range(1).createOrReplaceTempView("only_in_one")
    assert other.conf.get("spark.databricks.delta.write.txnVersion", None) is None
    assert not other.catalog.tableExists("only_in_one")
    assert one.conf.get("spark.sql.session.timeZone") == "UTC"
    one.catalog.dropTempView("only_in_one")


def test_column_names_differ_in_case(spark):
    assert spark.sql("SELECT 1 AS a").select("a").columns == ["a"]
    assert spark.conf.get("spark.sql.caseSensitive") == "true"
