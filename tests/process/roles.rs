//! The roles of docs/databases.md, made on a server of its own by the statements that stand there.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::docs::sql_of;
use crate::support::client::Client;
use crate::support::cluster::Cluster;
use crate::support::database::{number, run};
use crate::support::server::{Server, binary, new_token, run as run_command};

// req: KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_serves_under_a_role_that_may_not_change_tables() {
    let blocks = sql_of("docs/databases.md");
    let [roles, rights] = blocks.as_slice() else { panic!("two blocks: {blocks:?}") };
    for migrated_first in [false, true] {
        let cluster = Cluster::new(&[]).await;
        type_in(&cluster.url("postgres"), roles).await;
        let as_role = |role: &str| cluster.url("taskhold").replace("postgres@", &format!("{role}@"));
        let (owner, node) = (as_role("taskhold_owner"), as_role("taskhold_node"));
        let migrate = async || {
            let (status, _, stderr) = run_command(&["migrate", "--database-url", &owner]).await;
            assert!(status.success(), "{stderr}");
        };
        if migrated_first {
            migrate().await;
            type_in(&owner, rights).await;
        } else {
            type_in(&owner, rights).await;
            let (status, said, _) = run_command(&["check", "--database-url", &node]).await;
            assert!(!status.success() && said.contains("may not make tables in the schema public"), "{said}");
            migrate().await;
        }
        let upstream = format!("test={} demo-server --test-tools", binary());
        let (status, said, _) = run_command(&["check", "--database-url", &node, "--upstream", &upstream]).await;
        assert!(status.success() && said.contains("rights of the role taskhold_node: ok"), "{said}");

        let server = Server::start(&node).await;
        let client = Client::connected(&server.url, &new_token(&node, "owner").await).await;
        let task = client.task("echo", json!({ "n": 1 })).await;
        client.until_status(&task["taskId"], "completed").await;
        client.result(&task["taskId"]).await.result();
        assert!(server.terminate().await.success());

        // What the next release's migration makes.
        run(&owner, "CREATE TABLE later (id BIGINT)").await;
        run(&node, "INSERT INTO later VALUES (1); UPDATE later SET id = 2; DELETE FROM later WHERE id = 3").await;
        assert_eq!(number(&node, "SELECT COUNT(*) FROM later").await, 1);
        let mut session = PgConnection::connect(&node).await.unwrap();
        for forbidden in
            ["CREATE TABLE mine (id BIGINT)", "ALTER TABLE tasks ADD COLUMN mine BIGINT", "DROP TABLE tasks"]
        {
            let refused = sqlx::raw_sql(AssertSqlSafe(forbidden)).execute(&mut session).await.unwrap_err();
            assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("42501"), "{forbidden}");
        }
    }
}

/// One statement after the other, as people paste them: some are refused in a transaction.
async fn type_in(url: &str, statements: &str) {
    for statement in statements.split(';').filter(|statement| !statement.trim().is_empty()) {
        run(url, statement).await;
    }
}
