//! Questions of plain calls and prompts, answered by a retry.

use serde_json::{Value, json};

use super::client::{Answer, Modern};

fn accept(answer: &str) -> Value {
    json!({ "action": "accept", "content": { "answer": answer } })
}

fn keys(asked: &Answer) -> Vec<&str> {
    assert_eq!(asked.result()["resultType"], "input_required", "{}", asked.last());
    asked.result()["inputRequests"].as_object().unwrap().keys().map(String::as_str).collect()
}

async fn retry(client: &Modern, arguments: &Value, asked: Option<&Answer>, responses: Value) -> Answer {
    let mut params = json!({ "name": "ask", "arguments": arguments, "inputResponses": responses });
    if let Some(asked) = asked {
        params["requestState"] = asked.result()["requestState"].clone();
    }
    client.request("tools/call", params).await
}

#[tokio::test]
async fn each_retry_brings_answers_until_there_is_nothing_left_to_ask() {
    let client = Modern::new(&["--test-tools"]).await;
    let two = json!({ "n": 2 });
    let first = client.call("ask", two.clone()).await;
    assert_eq!(keys(&first), ["question-1"]);
    let lone = retry(&client, &two, None, json!({ "question-1": accept("one") })).await;
    assert_eq!(keys(&lone), ["question-1"], "an answer counts with its state only");
    let wrong = retry(&client, &two, Some(&first), json!({ "question-1": 7, "other": accept("x") })).await;
    assert_eq!(keys(&wrong), ["question-1"], "no answer, and one to nothing that was asked");
    let second = retry(&client, &two, Some(&first), json!({ "question-1": accept("one") })).await;
    assert_eq!(keys(&second), ["question-2"]);
    assert_ne!(first.result()["requestState"], second.result()["requestState"]);
    let done = retry(&client, &two, Some(&second), json!({ "question-2": accept("two") })).await;
    let answers: Value = serde_json::from_str(done.text()).unwrap();
    assert_eq!(answers, json!([accept("one"), accept("two")]));
    let other = retry(&client, &json!({ "n": 3 }), Some(&second), json!({})).await;
    assert_eq!(other.code(), (200, -32602), "the state is another call's");
}

#[tokio::test]
async fn questions_asked_at_once_go_out_together() {
    let client = Modern::new(&["--test-tools"]).await;
    let arguments = json!({ "n": 3, "at_once": true });
    let first = client.call("ask", arguments.clone()).await;
    assert_eq!(keys(&first), ["question-1", "question-2", "question-3"]);
    let part = retry(&client, &arguments, Some(&first), json!({ "question-2": accept("two") })).await;
    assert_eq!(keys(&part), ["question-1", "question-3"]);
    let rest = json!({ "question-1": accept("one"), "question-3": accept("three") });
    let done = retry(&client, &arguments, Some(&part), rest).await;
    assert!(done.text().contains("two") && done.text().contains("three"), "{}", done.text());
}

#[tokio::test]
async fn only_what_a_client_declared_is_asked() {
    let client = Modern::new(&["--test-tools"]).await;
    let call = async |name: &str, capabilities: Value| {
        client.request_with("tools/call", json!({ "name": name, "arguments": {} }), capabilities).await
    };
    let form = json!({ "elicitation": {} });
    assert_eq!(keys(&call("ask", form.clone()).await), ["question-1"]);
    assert_eq!(call("url_elicit", form).await.result()["isError"], true, "{{}} means forms only");
    let page = call("url_elicit", json!({ "elicitation": { "url": {} } })).await;
    assert_eq!(page.result()["inputRequests"]["page"]["params"].get("elicitationId"), None);
    assert_eq!(call("sample", json!({})).await.result()["isError"], true);
    assert_eq!(keys(&call("roots", json!({ "roots": {} })).await), ["roots"]);
}

#[tokio::test]
async fn rounds_without_a_state_need_none() {
    let client = Modern::new(&["--conformance"]).await;
    let asked = client.call("test_input_required_result_elicitation", json!({})).await;
    assert_eq!((keys(&asked), asked.result().get("requestState")), (vec!["user_name"], None));
    let answer = json!({ "user_name": { "action": "accept", "content": { "name": "Ann" } } });
    let params = json!({ "name": "test_input_required_result_elicitation", "inputResponses": answer });
    assert_eq!(client.request("tools/call", params).await.text(), "Hello, Ann!");
    let prompt = json!({ "name": "test_input_required_result_prompt" });
    assert_eq!(keys(&client.request("prompts/get", prompt.clone()).await), ["user_context"]);
    assert_eq!(client.request_with("prompts/get", prompt, json!({})).await.last()["error"]["code"], -32021);
    let context = json!({ "user_context": { "action": "accept", "content": { "context": "rain" } } });
    let params = json!({ "name": "test_input_required_result_prompt", "inputResponses": context });
    let answered = client.request("prompts/get", params).await;
    assert_eq!(answered.result()["messages"][0]["content"]["text"], "A prompt with the context: rain");
}
