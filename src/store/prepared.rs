//! The test that prepares every constant statement on its engine. A noun's file adds its list here; the macro that
//! makes the list leaves none of its statements out, and a test counts the files.

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Executor as _, PgConnection, SqlSafeStr as _, SqliteConnection};

    use super::super::dialect::{Connection, Dialect, Row, statements};
    use super::super::postgres::PostgresDialect;
    use super::super::sql::{Cells as _, args};
    use super::super::sqlite::SqliteDialect;
    use super::super::*;

    const SHARED: &[(&str, &[&str])] = &[
        ("catalog.rs", catalog::STATEMENTS),
        ("claims.rs", claims::STATEMENTS),
        ("contexts.rs", contexts::STATEMENTS),
        ("deliveries.rs", deliveries::STATEMENTS),
        ("inputs.rs", inputs::STATEMENTS),
        ("keyed.rs", keyed::STATEMENTS),
        ("keys.rs", keys::STATEMENTS),
        ("migrate.rs", migrate::STATEMENTS),
        ("migrate_pooled.rs", migrate_pooled::STATEMENTS),
        ("nodes.rs", nodes::STATEMENTS),
        ("operators.rs", operators::STATEMENTS),
        ("queue.rs", queue::STATEMENTS),
        ("retention.rs", retention::STATEMENTS),
        ("rounds.rs", rounds::STATEMENTS),
        ("schema.rs", schema::STATEMENTS),
        ("sessions.rs", sessions::STATEMENTS),
        ("signals.rs", signals::STATEMENTS),
        ("subscriptions.rs", subscriptions::STATEMENTS),
        ("tasks.rs", tasks::STATEMENTS),
        ("tokens.rs", tokens::STATEMENTS),
        ("upstream_tasks.rs", upstream_tasks::STATEMENTS),
    ];

    fn all<D: Dialect>() -> impl Iterator<Item = &'static str> {
        SHARED.iter().flat_map(|(_, list)| list.iter().copied()).chain(statements::<D>())
    }

    #[test]
    fn every_file_with_statements_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store");
        let mut with_statements: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().is_file())
            .filter(|entry| std::fs::read_to_string(entry.path()).unwrap().contains("\nstatements! {"))
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        with_statements.sort();
        assert_eq!(with_statements, SHARED.iter().map(|(file, _)| *file).collect::<Vec<_>>());
    }

    /// The plan of the statement that lists a page.
    async fn plan_of_a_page<D: Dialect>(
        connection: &mut Connection<D>,
        context: ContextId,
        explain: &str,
        column: &str,
    ) -> String {
        let list = tasks::STATEMENTS.iter().find(|sql| sql.contains("ORDER BY t.created DESC")).unwrap();
        let explain: &'static str = format!("{explain} {list}").leak();
        let position = args![context, i64::MAX, uuid::Uuid::max(), 5_i64, 50_i64];
        let lines: Vec<Row<D>> = D::fetch(connection, explain, position, true).await.unwrap();
        lines.iter().map(|line| line.text(column).unwrap()).collect::<Vec<_>>().join("\n")
    }

    // req: TASK-21
    #[tokio::test]
    async fn a_page_is_a_range_of_the_index_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = sqlite(&folder).await;
        let plan =
            plan_of_a_page::<SqliteDialect>(&mut connection, ContextId::new(), "EXPLAIN QUERY PLAN", "detail").await;
        assert!(plan.contains("tasks_by_context (context=? AND (created,id)<(?,?))"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}");
    }

    // req: TASK-21
    #[tokio::test]
    async fn a_page_is_a_range_of_the_index_on_postgres() {
        let (mut connection, schema) = postgres().await;
        let context = ContextId::new();
        let rows = format!(
            "ALTER TABLE tasks SET (autovacuum_enabled = off);
            ALTER TABLE task_outcomes SET (autovacuum_enabled = off);
            INSERT INTO auth_contexts VALUES ('{context}', '', '', '', '', 0);
            INSERT INTO tasks (id, context, created, updated, ended, status, granted_ttl, poll_interval, restart,
                attempts_allowed, run_limit, tool, upstream, upstream_tool, capabilities)
            SELECT gen_random_uuid(), '{context}', n, n, n, 2, 1, 1, 0, 1, 1, 't', 'u', 'v', '{{}}'
            FROM generate_series(1, 20000) n;
            INSERT INTO task_outcomes SELECT id, gen_random_uuid(), 1, 1000000, '{{}}' FROM tasks"
        );
        connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(rows))).await.unwrap();
        // Before its statistics are there as well as after.
        for statistics in ["", "ANALYZE tasks; ANALYZE task_outcomes"] {
            connection.execute(sqlx::raw_sql(statistics)).await.unwrap();
            let plan = plan_of_a_page::<PostgresDialect>(&mut connection, context, "EXPLAIN", "QUERY PLAN").await;
            assert!(plan.contains("tasks_by_context") && plan.contains("ROW(created, id) <"), "{plan}");
            assert!(!plan.contains("Sort") && !plan.contains("Seq Scan") && !plan.contains("Bitmap"), "{plan}");
        }
        drop_schema(connection, &schema).await;
    }

    async fn plan<D: Dialect>(
        connection: &mut Connection<D>,
        (explain, column): (&str, &str),
        sql: &str,
        args: super::super::sql::Args,
    ) -> String {
        let explain: &'static str = format!("{explain} {sql}").leak();
        let lines: Vec<Row<D>> = D::fetch(connection, explain, args, true).await.unwrap();
        lines.iter().map(|line| line.text(column).unwrap()).collect::<Vec<_>>().join("\n")
    }

    fn of_queue(part: &str) -> &'static str {
        queue::STATEMENTS.iter().find(|sql| sql.contains(part)).unwrap()
    }

    // req: AUTH-15
    #[tokio::test]
    async fn the_first_of_a_lane_is_found_by_one_step_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = sqlite(&folder).await;
        let explain = ("EXPLAIN QUERY PLAN", "detail");
        let lanes = args![uuid::Uuid::nil(), "", i64::MIN, 100_u32];
        let lanes = plan::<SqliteDialect>(&mut connection, explain, of_queue("RECURSIVE"), lanes).await;
        let step = "SEARCH x USING INDEX task_live_lanes ((context,tool,not_before)>(?,?,?))";
        assert!(lanes.contains(step) && !lanes.contains("TEMP B-TREE"), "{lanes}");
        let lane = args![ContextId::new(), "", 5_i64, 1_i64, 0_i64];
        let lane = plan::<SqliteDialect>(&mut connection, explain, SqliteDialect::PICK_WAITING[0], lane).await;
        assert!(lane.contains("task_live_lanes (context=? AND tool=? AND not_before>? AND not_before<?)"), "{lane}");
        assert!(!lane.contains("TEMP B-TREE"), "{lane}");
    }

    // req: AUTH-15
    #[tokio::test]
    async fn the_first_of_a_lane_is_found_by_one_step_on_postgres() {
        let (mut connection, schema) = postgres().await;
        let rows = "ALTER TABLE task_live SET (autovacuum_enabled = off);
            INSERT INTO task_live (task, attempt, not_before, hard_end, context)
            SELECT gen_random_uuid(), 0, n, 1, gen_random_uuid()
            FROM generate_series(1, 20) n;
            INSERT INTO task_live (task, attempt, not_before, hard_end, context)
            SELECT gen_random_uuid(), 0, n, 1, '11111111-1111-4111-8111-111111111111' FROM generate_series(1, 20000) n";
        connection.execute(sqlx::raw_sql(rows)).await.unwrap();
        let explain = ("EXPLAIN", "QUERY PLAN");
        for statistics in ["", "ANALYZE task_live"] {
            connection.execute(sqlx::raw_sql(statistics)).await.unwrap();
            let lanes = args![uuid::Uuid::nil(), "", i64::MIN, 100_i64];
            let lanes = plan::<PostgresDialect>(&mut connection, explain, of_queue("RECURSIVE"), lanes).await;
            let step = "(ROW(context, tool, not_before) > ROW(";
            assert!(lanes.contains(step) && !lanes.contains("Sort") && !lanes.contains("Seq Scan"), "{lanes}");
            let pick = PostgresDialect::PICK_WAITING[0];
            let context = uuid::Uuid::from_u128(0x1111_1111_1111_4111_8111_1111_1111_1111);
            let pick =
                pick.replace("$1::uuid[]", &format!("ARRAY['{context}'::uuid]")).replace("$2::text[]", "ARRAY['']");
            let pick = pick.replace("$3::bigint[]", "ARRAY[9]").replace("$4::bigint[]", "ARRAY[1]");
            let pick = pick.replace("$5::bigint[]", "ARRAY[0]");
            let pick = plan::<PostgresDialect>(&mut connection, explain, &pick, Vec::new()).await;
            let range = "(ROW(context, tool, not_before) <= ROW(";
            assert!(pick.contains("task_live_lanes") && pick.contains(range) && !pick.contains("Sort"), "{pick}");
            let count = args![uuid::Uuid::from_u128(1), 100_i64];
            let count = plan::<PostgresDialect>(&mut connection, explain, of_queue("WHERE context = $1"), count).await;
            assert!(count.contains("task_live_lanes") && !count.contains("Sort"), "{count}");
        }
        drop_schema(connection, &schema).await;
    }

    /// Their names are read from the migrations' texts.
    #[tokio::test]
    async fn the_tables_whose_rights_are_checked_are_all_there_are() {
        let (mut connection, schema) = postgres().await;
        let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1";
        let mut tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.unwrap();
        tables.retain(|table| table != schema::NOTES);
        let mut ours = migrate::tables();
        ours.sort_unstable();
        assert_eq!(tables, ours);
        drop_schema(connection, &schema).await;
    }

    /// Batches lock live rows in the order in which their own rows come.
    #[tokio::test]
    async fn ends_go_through_the_batch_and_not_through_the_table_on_postgres() {
        let (mut connection, schema) = postgres().await;
        let context = ContextId::new();
        let rows = format!(
            "ALTER TABLE tasks SET (autovacuum_enabled = off);
            ALTER TABLE task_live SET (autovacuum_enabled = off);
            INSERT INTO auth_contexts VALUES ('{context}', '', '', '', '', 0);
            INSERT INTO tasks (id, context, created, updated, status, granted_ttl, poll_interval, restart,
                attempts_allowed, run_limit, tool, upstream, upstream_tool, capabilities)
            SELECT gen_random_uuid(), '{context}', n, n, 0, 1, 1, 0, 1, 1, 't', 'u', 'v', '{{}}'
            FROM generate_series(1, 5000) n;
            INSERT INTO task_live (task, attempt, not_before, hard_end, context) SELECT id, 0, 1, 1, context FROM tasks"
        );
        connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(rows))).await.unwrap();
        for statistics in ["", "ANALYZE tasks; ANALYZE task_live"] {
            connection.execute(sqlx::raw_sql(statistics)).await.unwrap();
            for batch in [1, 10, 256] {
                let mut end = PostgresDialect::END[0].to_owned();
                for (number, kind) in ["uuid", "uuid", "uuid", "bigint", "text", "bigint", "bigint", "text", "uuid"]
                    .into_iter()
                    .enumerate()
                {
                    let values = match number {
                        0 => format!("ARRAY(SELECT task FROM task_live ORDER BY task LIMIT {batch})"),
                        _ => format!("array_fill(NULL::{kind}, ARRAY[{batch}])"),
                    };
                    end = end.replace(&format!("${}::{kind}[]", number + 1), &values);
                }
                let plan = plan::<PostgresDialect>(&mut connection, ("EXPLAIN", "QUERY PLAN"), &end, Vec::new()).await;
                let gone = plan.split("CTE gone").nth(1).unwrap().split("CTE done").next().unwrap();
                assert!(!gone.contains("Hash Join") && !gone.contains("Seq Scan on task_live"), "{batch}: {plan}");
            }
        }
        drop_schema(connection, &schema).await;
    }

    /// A plan that is made while a table has few rows is kept while it grows.
    #[tokio::test]
    async fn rows_of_a_batch_are_found_by_their_ids_however_few_there_are_on_postgres() {
        let (mut connection, schema) = postgres().await;
        let kinds = |sql: &str| -> Vec<(String, String)> {
            let wanted = (1..).map(|number| format!("${number}::"));
            let kind = |name: &String| sql.split(name.as_str()).nth(1)?.split('[').next().map(str::to_owned);
            wanted.map_while(|name| kind(&name).map(|kind| (name, kind))).collect()
        };
        let statements = [
            PostgresDialect::END,
            PostgresDialect::TAKE,
            PostgresDialect::CLAIMS,
            PostgresDialect::NOTE,
            PostgresDialect::NOTE_WAITING,
            PostgresDialect::RELEASE,
            PostgresDialect::FIND,
            PostgresDialect::FIND_OUTCOME,
            PostgresDialect::TASKS,
            PostgresDialect::WRITTEN,
            PostgresDialect::LOCK_LIVE,
        ];
        // Of one row every plan is as good as any other; connections forget their plans soon.
        for rows in [4, 1_000] {
            let filling = format!(
                "INSERT INTO tasks (id, context, created, updated, status, granted_ttl, poll_interval, restart,
                    attempts_allowed, run_limit, tool, upstream, upstream_tool, capabilities)
                SELECT gen_random_uuid(), gen_random_uuid(), n, n, 0, 1, 1, 0, 1, 1, 't', 'u', 'v', '{{}}'
                FROM generate_series(1, {rows}) n;
                INSERT INTO task_live (task, attempt, not_before, hard_end, context)
                SELECT id, 0, 1, 1, context FROM tasks ON CONFLICT DO NOTHING;
                INSERT INTO task_inputs (id, task, context, token, kind, state, created)
                SELECT id, id, id, id, 0, 0, 1 FROM tasks ON CONFLICT DO NOTHING;
                ANALYZE tasks; ANALYZE task_live; ANALYZE task_inputs"
            );
            connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(filling))).await.unwrap();
            for statement in statements {
                // As for any batch: an array of which nothing is known, its elements guessed.
                let mut sql = statement[0].to_owned();
                for (name, kind) in kinds(statement[0]) {
                    let array = format!("(SELECT array_agg(NULL::{kind}) FROM generate_series(1, 9))::{kind}[]");
                    sql = sql.replace(&format!("{name}{kind}[]"), &array);
                }
                let plan = plan::<PostgresDialect>(&mut connection, ("EXPLAIN", "QUERY PLAN"), &sql, Vec::new()).await;
                let lines: Vec<&str> = plan.lines().collect();
                for (at, line) in lines.iter().enumerate() {
                    let scans = line.contains(" Scan") && [" on tasks", " on task_"].iter().any(|on| line.contains(on));
                    let finds = !scans || line.contains("_pkey") && lines[at + 1].contains("Index Cond:");
                    assert!(finds || line.contains("task_inputs_by_task"), "{rows}: {line}\n{plan}");
                }
            }
        }
        drop_schema(connection, &schema).await;
    }

    #[tokio::test]
    async fn every_statement_prepares_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = sqlite(&folder).await;
        for sql in all::<SqliteDialect>().chain(SqliteDialect::WATCH) {
            (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
    }

    #[tokio::test]
    async fn every_statement_prepares_on_postgres() {
        let (mut connection, schema) = postgres().await;
        for sql in all::<PostgresDialect>() {
            (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
        drop_schema(connection, &schema).await;
    }

    /// What the release before asked of the database, as text: it runs beside this one while a deploy rolls.
    const PREVIOUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-0004");
    const BETWEEN: &str = "\n-- next --\n";

    fn of_the_previous_release(database: &str, now: &[&str]) -> Vec<&'static str> {
        let path = format!("{PREVIOUS}/statements-{database}.txt");
        if std::env::var_os("UPDATE_STATEMENTS").is_some() {
            std::fs::write(&path, now.join(BETWEEN)).unwrap();
        }
        let statements = std::fs::read_to_string(path).unwrap().leak().split(BETWEEN).collect::<Vec<_>>();
        assert!(statements.len() > 60, "{} statements", statements.len());
        statements
    }

    // req: KEEP-01
    // field case: F-OPS-07
    #[tokio::test]
    async fn every_statement_of_the_previous_release_prepares_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = sqlite(&folder).await;
        let now: Vec<_> = all::<SqliteDialect>().chain(SqliteDialect::WATCH).collect();
        for sql in of_the_previous_release("sqlite", &now) {
            (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
    }

    // req: KEEP-01
    // field case: F-OPS-07
    #[tokio::test]
    async fn every_statement_of_the_previous_release_prepares_on_postgres() {
        let (mut connection, schema) = postgres().await;
        let now: Vec<_> = all::<PostgresDialect>().collect();
        for sql in of_the_previous_release("postgres", &now) {
            (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
        drop_schema(connection, &schema).await;
    }

    async fn sqlite(folder: &tempfile::TempDir) -> SqliteConnection {
        let url = format!("sqlite://{}", folder.path().join("taskhold.db").display());
        migrate::migrate(&DatabaseOptions::new(url.as_str())).await.unwrap();
        SqliteConnection::connect(&url).await.unwrap()
    }

    /// A connection as the service has it, to a migrated schema of its own.
    async fn postgres() -> (PgConnection, String) {
        #[expect(clippy::disallowed_methods, reason = "the one setting of the tests")]
        let url = std::env::var("TASKHOLD_TEST_POSTGRES_URL")
            .expect("TASKHOLD_TEST_POSTGRES_URL is not set: run the tests by scripts/test");
        let schema = format!("prepared_{}", TaskId::new().as_uuid().simple());
        let options = DatabaseOptions { schema: Some(schema.clone()), ..DatabaseOptions::new(url.as_str()) };
        migrate::migrate(&options).await.unwrap();
        let Ok(options::Target::Postgres(target)) = options.target() else { panic!("it is PostgreSQL") };
        let service = open_postgres::service_options(&options, target.options(0));
        (PgConnection::connect_with(&service).await.unwrap(), schema)
    }

    async fn drop_schema(mut connection: PgConnection, schema: &str) {
        connection.execute(sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).await.unwrap();
    }
}
