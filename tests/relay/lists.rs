//! What is listed and declared, before and behind the gateway.

use serde_json::{Value, json};
use taskhold::domain::clock::SystemClock;
use taskhold::executor::Catalogue;
use taskhold::executor::upstream::Upstreams;

use super::library;
use crate::http::harness::{Gateway, engine_rules};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::upstream::harness::{script, settings, test_tools, until, within};

contract! {
    what_is_served_is_declared_and_nothing_else,
    a_restarted_node_declares_and_lists_before_its_upstreams_are_up,
}

/// Each method, and params that are well formed.
fn besides() -> [(&'static str, Value); 9] {
    let reference = json!({ "type": "ref/prompt", "name": "test_prompt_with_arguments" });
    [
        ("prompts/list", json!({})),
        ("prompts/get", json!({ "name": "test_simple_prompt" })),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "test://static-text" })),
        ("resources/subscribe", json!({ "uri": "test://watched-resource" })),
        ("resources/unsubscribe", json!({ "uri": "test://watched-resource" })),
        ("completion/complete", json!({ "ref": reference, "argument": { "name": "arg1", "value": "pa" } })),
        ("logging/setLevel", json!({ "level": "info" })),
    ]
}

// req: CAP-11 (legacy half)
async fn what_is_served_is_declared_and_nothing_else(database: TestDatabase) {
    let plain = Gateway::with(database, settings(), vec![test_tools("test")], engine_rules()).await;
    let mut client = Client::new(&plain.front.url, Some("owner"));
    let declared = client.initialize("2025-11-25").await["capabilities"].clone();
    for name in ["prompts", "resources", "completions", "logging"] {
        assert_eq!(declared.get(name), None, "{declared}");
    }
    for (method, params) in besides() {
        assert_eq!(client.request(method, params).await.error().0, -32601, "{method}");
    }
    plain.upstreams.stop().await;
    let database = TestDatabase::new(Backend::Sqlite).await;
    let full = Gateway::with(database, settings(), vec![test_tools("test"), library("library")], engine_rules()).await;
    let mut client = Client::new(&full.front.url, Some("owner"));
    for revision in ["2025-06-18", "2025-11-25"] {
        let declared = client.initialize(revision).await["capabilities"].clone();
        assert_eq!(declared["resources"]["subscribe"], true, "{declared}");
        for name in ["prompts", "resources", "completions", "logging", "tools"] {
            assert!(declared[name].is_object(), "{name}: {declared}");
        }
        for (method, params) in besides() {
            let answer = client.request(method, params).await;
            assert!(answer.result().is_object(), "{method}");
        }
    }
    full.upstreams.stop().await;
}

// req: CAP-11 (legacy half)
async fn a_restarted_node_declares_and_lists_before_its_upstreams_are_up(database: TestDatabase) {
    let first = Gateway::with(database, settings(), vec![library("library")], engine_rules()).await;
    let lists = async |client: &Client| {
        let mut lists = Vec::new();
        for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
            lists.push(client.request(method, json!({})).await.outcome());
        }
        lists
    };
    let mut client = Client::new(&first.front.url, Some("owner"));
    let declared = client.initialize("2025-11-25").await;
    let before = lists(&client).await;
    assert!(before.iter().all(|list| list.len() > 100), "{before:?}");
    first.upstreams.stop().await;
    // The same upstream by name, which does not answer yet.
    let Gateway { database, .. } = first;
    let hanging = vec![script("library", "exec sleep 600")];
    let store = database.store.system();
    let upstreams = Upstreams::start(hanging, settings(), store, SystemClock::new()).await;
    assert!(upstreams.is_known("library") && !upstreams.is_known("other"));
    let second = Gateway::before(database, upstreams, engine_rules()).await;
    let mut client = Client::new(&second.front.url, Some("owner"));
    assert_eq!(client.initialize("2025-11-25").await["capabilities"], declared["capabilities"]);
    assert_eq!(lists(&client).await, before);
    second.upstreams.stop().await;
}

// req: EXEC-06, EXEC-13
#[tokio::test]
async fn two_upstreams_with_one_prompt_and_one_uri_are_told_apart() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![library("one"), library("two.b")], engine_rules()).await;
    let client = gateway.client("owner").await;
    let names = async |method: &str, list: &str, key: &str| -> Vec<String> {
        let result = client.request(method, json!({})).await.result();
        result[list].as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
    };
    let prompts = names("prompts/list", "prompts", "name").await;
    assert_eq!(prompts.len(), 10, "{prompts:?}");
    assert_eq!(prompts[0], "test_simple_prompt");
    let safe = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    assert!(prompts.iter().all(|name| safe(name) && name.len() <= 64), "{prompts:?}");
    let second = prompts[6].clone();
    assert_ne!(second, "test_prompt_with_arguments");
    // The name leads back to the upstream's own, in the prompt and in its completions.
    let arguments = json!({ "arg1": "a", "arg2": "b" });
    let got = client.request("prompts/get", json!({ "name": second, "arguments": arguments })).await.result();
    assert_eq!(got["messages"][0]["content"]["text"], "Prompt with arguments: arg1='a', arg2='b'");
    let reference = json!({ "type": "ref/prompt", "name": second });
    let complete = json!({ "ref": reference, "argument": { "name": "arg1", "value": "par" } });
    let values = client.request("completion/complete", complete).await.result()["completion"]["values"].clone();
    assert_eq!(values, json!(["paris", "park", "party"]));
    assert_eq!(client.request("prompts/get", json!({ "name": "none" })).await.error().0, -32602);

    let uris = names("resources/list", "resources", "uri").await;
    assert_eq!(uris, ["test://static-text", "test://static-binary", "test://watched-resource"]);
    assert_eq!(names("resources/templates/list", "resourceTemplates", "uriTemplate").await.len(), 1);
    let shelf = gateway.upstreams.shelf();
    let clash = &shelf.clashes()[0];
    assert_eq!(
        (clash.upstream.as_str(), clash.item.as_str(), clash.kept_by.as_str()),
        ("two.b", "test://static-text", "one")
    );
    assert_eq!(shelf.clashes().len(), 4);
    gateway.upstreams.stop().await;
}

// req: EXEC-03
#[tokio::test]
async fn a_changed_list_of_prompts_or_resources_is_seen() {
    const CHANGING: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) old=$(cat "$FILE"); echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"prompts":{"listChanged":true},"resources":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}}'
      ( while sleep 0.05; do new=$(cat "$FILE"); [ "$old" = "$new" ] || echo '{"jsonrpc":"2.0","method":"notifications/'$(head -1 "$FILE")'/list_changed"}'; old=$new; done ) & ;;
    *'"prompts/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"prompts":'"$(sed -n 2p "$FILE")"'}}' ;;
    *'"resources/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"resources":'"$(sed -n 3p "$FILE")"'}}' ;;
    *'"resources/templates/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
  esac
done
"#;
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |kind: &str, prompts: &str, resources: &str| {
        crate::upstream::catalog::write(file.path(), &format!("{kind}\n{prompts}\n{resources}\n"));
    };
    write("prompts", r#"[{"name":"a"}]"#, r#"[{"uri":"x://1","name":"1"},{"uri":"x://2","name":"2"}]"#);
    let mut changing = script("changing", CHANGING);
    changing.env = vec![("FILE".to_owned(), file.path().display().to_string())];
    let database = TestDatabase::new(Backend::Sqlite).await;
    let upstreams = Upstreams::start(vec![changing], settings(), database.store.system(), SystemClock::new()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let changes = upstreams.changes();
    let before = *changes.borrow();
    let prompts = || -> Vec<String> { upstreams.shelf().prompts().iter().map(|one| one.exposed.clone()).collect() };
    let uris = || -> Vec<String> { upstreams.shelf().resources().iter().map(|one| one.uri.clone()).collect() };
    assert_eq!((prompts(), uris()), (vec!["a".to_owned()], vec!["x://1".to_owned(), "x://2".to_owned()]));
    write("prompts", r#"[{"name":"b"}]"#, r#"[{"uri":"x://1","name":"1"},{"uri":"x://2","name":"2"}]"#);
    until("another list of prompts", || changes.borrow().prompts > before.prompts).await;
    assert_eq!(prompts(), ["b"]);
    let after = *changes.borrow();
    assert_eq!((after.prompts, after.resources, after.tools), (before.prompts + 1, before.resources, before.tools));
    write("resources", r#"[{"name":"b"}]"#, r#"[{"uri":"x://3","name":"3"}]"#);
    until("another list of resources", || changes.borrow().resources > before.resources).await;
    assert_eq!(uris(), ["x://3"]);
    assert_eq!(changes.borrow().resources, before.resources + 1);
    // What keeps its own URI leaves nothing behind; a name that was given is kept.
    let stored = database.store.system().catalog().await.unwrap();
    let names: Vec<_> = stored.iter().map(|item| (item.kind.as_str(), item.name.as_str(), item.listed)).collect();
    assert_eq!(
        names,
        [
            ("capabilities", "capabilities", true),
            ("prompt", "a", false),
            ("prompt", "b", true),
            ("resource", "x://3", true)
        ]
    );
    upstreams.stop().await;
}
