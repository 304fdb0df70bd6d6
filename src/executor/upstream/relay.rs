//! Requests that are passed on besides calls of tools, and what outlasts them: log levels and subscriptions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::handed::outcome;
use super::link::Link;
use super::links::{Lease, NoLink};
use super::modern::{Ended, Rounds, Said};
use super::outgoing::NOT_PASSED_ON;
use super::requests::{NoReply, Outbound, Reply};
use super::{Upstream, Upstreams};
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::outcome::Outcome;
use crate::executor::{Attempt, Host, Relay, Subscription, Wanted};
use crate::lifecycle;
use crate::protocol::jsonrpc::{ErrorObject, INVALID_PARAMS, RESOURCE_NOT_FOUND};
use crate::protocol::splice::{member, quoted, replace_member, set_members, set_meta};

/// Values of one completion that a client takes.
const MOST_VALUES: usize = 100;
/// How long a request of our own is waited for before what was asked for goes on without it.
const ASIDE_LIMIT: Duration = Duration::from_secs(5);

impl Upstreams {
    pub(super) async fn pass_on(&self, relay: Relay, host: Arc<dyn Host>, stop: CancellationToken) -> Attempt {
        // What is told if nobody has it: that somebody could not be asked, or refused for another reason.
        let mut other = None;
        for name in &relay.upstreams {
            let Some(upstream) = self.upstreams.iter().find(|upstream| upstream.config.name == *name) else { continue };
            let attempt = self.ask_one(upstream, &relay, &host, &stop).await;
            let is_last_word = match &attempt {
                Attempt::Answered(Outcome::Error { json }) => relay.upstreams.len() == 1 || !is_not_found(json),
                Attempt::Answered(_) | Attempt::Stopped | Attempt::Asked => true,
                Attempt::NotDispatched { .. } | Attempt::Lost { .. } => relay.upstreams.len() == 1,
            };
            if is_last_word {
                return attempt;
            }
            if matches!(attempt, Attempt::NotDispatched { .. } | Attempt::Lost { .. }) {
                other.get_or_insert(attempt);
            }
        }
        other.unwrap_or_else(|| not_found(&relay.wanted))
    }

    async fn ask_one(
        &self,
        upstream: &Upstream,
        relay: &Relay,
        host: &Arc<dyn Host>,
        stop: &CancellationToken,
    ) -> Attempt {
        if let Wanted::EndOfSubscription(uri) = &relay.wanted
            && upstream.links.unfollow(relay.context, uri)
        {
            // Somebody else over the same link goes on.
            return Attempt::Answered(Outcome::Result { json: RawJson::trusted("{}"), is_error: false });
        }
        let mut attempt = self.exchange(upstream, relay, host, stop).await;
        if let Err(over) = &attempt
            && over.is_closed()
        {
            // The link had ended unnoticed, as a session does that its upstream forgets: another may be had at once.
            attempt = self.exchange(upstream, relay, host, stop).await;
        }
        let attempt = attempt.unwrap_or_else(|over| Attempt::NotDispatched { detail: over.why_closed() });
        if let Wanted::Subscription(uri) = &relay.wanted
            && matches!(attempt, Attempt::Answered(Outcome::Result { .. }))
        {
            upstream.links.follow(relay.context, uri);
        }
        attempt
    }

    /// The end of one request; the link if it was not sent over it.
    async fn exchange(
        &self,
        upstream: &Upstream,
        relay: &Relay,
        host: &Arc<dyn Host>,
        stop: &CancellationToken,
    ) -> Result<Attempt, Arc<Link>> {
        let lease = match upstream.links.lease(relay.context, stop).await {
            Ok(lease) => lease,
            Err(NoLink::Stopped) => return Ok(Attempt::Stopped),
            Err(NoLink::Unavailable(detail) | NoLink::Gone(detail)) => return Ok(Attempt::NotDispatched { detail }),
        };
        lease.prepare().await;
        // While it is open, what the upstream says and asks belongs to it.
        let open = lease.link.open_call(relay.context, Arc::clone(host));
        let number = open.number();
        let params = outgoing_params(relay, number);
        let answer = if lease.link.is_modern() {
            exchange_modern(&lease, relay, (number, &params), (host, stop), upstream.links.open_questions()).await
        } else {
            let request =
                Outbound { call: Some(number), ..Outbound::new(number, relay.wanted.method(), Some(&params)) };
            lease.link.request(request, stop).await.map(Some)
        };
        Ok(match answer {
            Ok(None) => {
                lease.answered();
                Attempt::Asked
            }
            Ok(Some(reply)) => {
                lease.answered();
                let mut outcome = outcome(reply);
                if let (Outcome::Result { json, .. }, "completion/complete") = (&mut outcome, relay.wanted.method()) {
                    let whole = json.clone();
                    let cut = lifecycle::aside(json.len(), move || at_most_so_many_values(&whole)).await;
                    // It panicked there; here the panic is this request's own.
                    *json = cut.unwrap_or_else(|| at_most_so_many_values(json));
                }
                Attempt::Answered(outcome)
            }
            Err(NoReply::NotSent(_)) => return Err(Arc::clone(&lease.link)),
            Err(NoReply::Lost(how)) => Attempt::Lost { detail: format!("the connection to the server ended ({how})") },
            Err(NoReply::Stopped) => Attempt::Stopped,
        })
    }

    pub(super) fn give_up_subscriptions_besides(&self, wanted: &std::collections::HashSet<Subscription>) {
        for upstream in &self.upstreams {
            upstream.links.keep(|context, uri| {
                let upstream = upstream.config.name.clone();
                wanted.contains(&Subscription { context, upstream, uri: uri.to_owned() })
            });
        }
    }
}

/// The answer of an upstream whose every request stands alone. Who follows a resource there listens to it.
async fn exchange_modern(
    lease: &Lease,
    relay: &Relay,
    (number, params): (u64, &RawJson),
    (host, stop): (&Arc<dyn Host>, &CancellationToken),
    most_open: usize,
) -> Result<Option<Reply>, NoReply> {
    let link = &lease.link;
    let followed = match &relay.wanted {
        Wanted::Subscription(uri) => tokio::select! {
            biased;
            () = stop.cancelled() => return Err(NoReply::Stopped),
            added = link.resources.add(link.table(), uri) => added,
        },
        Wanted::EndOfSubscription(uri) => {
            link.resources.remove(uri);
            Ok(())
        }
        wanted => {
            let said = Said { log_level: Some(lease.log_level()), ..Said::of_caller(&relay.capabilities) };
            let method = wanted.method();
            let rounds = Rounds { link, call: number, method, params, said, host, stop, most_open };
            return rounds.run().await.map(|ended| match ended {
                Ended::Reply(reply) => Some(reply),
                Ended::Task(_) => Some(Reply::Broken(format!("it answers {method} with a task"))),
                Ended::Asked => None,
            });
        }
    };
    Ok(Some(match followed {
        Ok(()) => Reply::Result(RawJson::trusted("{}")),
        Err(why) => Reply::Error(ErrorObject::new(INVALID_PARAMS, why).to_raw()),
    }))
}

/// The caller's params; a progress token is replaced by ours.
fn outgoing_params(relay: &Relay, number: u64) -> RawJson {
    let params = match &relay.wanted {
        Wanted::Prompt(name) => replace_member(&relay.params, "name", &quoted(name)),
        Wanted::PromptArgument(name) => {
            let reference = RawJson::trusted(member(relay.params.as_str(), "ref").unwrap_or("{}"));
            replace_member(&relay.params, "ref", replace_member(&reference, "name", &quoted(name)).as_str())
        }
        _ => relay.params.clone(),
    };
    let has_token = member(params.as_str(), "_meta").and_then(|meta| member(meta, "progressToken")).is_some();
    let token = number.to_string();
    let set: &[(&str, &str)] = if has_token { &[("progressToken", &token)] } else { &[] };
    set_meta(&params, set, &NOT_PASSED_ON)
}

/// Completions with no more values than the specification lets a server give; strict clients refuse more.
fn at_most_so_many_values(result: &RawJson) -> RawJson {
    let cut = || {
        let completion = member(result.as_str(), "completion").filter(|raw| raw.starts_with('{'))?;
        let values: Vec<&RawValue> = serde_json::from_str(member(completion, "values")?).ok()?;
        let most = values.get(..MOST_VALUES).filter(|_| values.len() > MOST_VALUES)?;
        let kept = format!("[{}]", most.iter().map(|value| value.get()).collect::<Vec<_>>().join(","));
        let kept = [("values", kept.as_str()), ("hasMore", "true")];
        Some(replace_member(result, "completion", set_members(&RawJson::trusted(completion), &kept, &[]).as_str()))
    };
    cut().unwrap_or_else(|| result.clone())
}

/// Whether an upstream says that it has no such thing.
fn is_not_found(error: &RawJson) -> bool {
    matches!(member(error.as_str(), "code"), Some("-32002" | "-32601" | "-32602"))
}

fn not_found(wanted: &Wanted) -> Attempt {
    let data = match wanted {
        Wanted::Contents(uri) | Wanted::Subscription(uri) | Wanted::EndOfSubscription(uri) => {
            format!(r#","data":{{"uri":{}}}"#, quoted(uri))
        }
        Wanted::Prompt(_) | Wanted::PromptArgument(_) | Wanted::TemplateArgument => String::new(),
    };
    let error = format!(r#"{{"code":{RESOURCE_NOT_FOUND},"message":"resource not found"{data}}}"#);
    Attempt::Answered(Outcome::Error { json: RawJson::trusted(error) })
}

/// Asks the upstream for log messages from this level on; whether it agreed.
pub(super) async fn set_level(link: &Link, level: LogLevel) -> bool {
    let params = RawJson::trusted(format!(r#"{{"level":{}}}"#, quoted(level.as_str())));
    aside(link, "logging/setLevel", &params).await
}

pub(super) async fn subscribe(link: &Link, uri: &str) {
    if link.is_modern() {
        link.resources.want(link.table(), uri);
        return;
    }
    aside(link, "resources/subscribe", &RawJson::trusted(format!(r#"{{"uri":{}}}"#, quoted(uri)))).await;
}

pub(super) async fn unsubscribe(link: &Link, uri: &str) {
    if link.is_modern() {
        link.resources.remove(uri);
        return;
    }
    aside(link, "resources/unsubscribe", &RawJson::trusted(format!(r#"{{"uri":{}}}"#, quoted(uri)))).await;
}

async fn aside(link: &Link, method: &'static str, params: &RawJson) -> bool {
    let request = Outbound::new(link.next_number(), method, Some(params));
    match timeout(ASIDE_LIMIT, link.request(request, &CancellationToken::new())).await {
        Ok(Ok(Reply::Result(_))) => true,
        _ => {
            tracing::debug!(rpc.method = method, "an upstream did not agree to a request of ours");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ContextId;

    #[test]
    fn completions_are_cut_to_what_a_client_takes() {
        let with = |count: usize, rest: &str| {
            let values = vec![r#""\ud800""#; count].join(",");
            RawJson::trusted(format!(r#"{{"k":1.0,"completion":{{"values":[{values}]{rest}}},"_meta":{{}}}}"#))
        };
        let hundred = with(100, r#","total":1e400,"hasMore":false"#);
        assert_eq!(at_most_so_many_values(&hundred), hundred);
        let cut = at_most_so_many_values(&with(101, r#","total":1e400,"hasMore":false"#));
        let read = crate::domain::schema::copy(cut.as_str()).unwrap();
        assert_eq!(read["completion"]["values"].as_array().map(Vec::len), Some(100));
        assert_eq!(read["completion"]["hasMore"], true);
        assert!(cut.as_str().contains(r#""\ud800""#) && cut.as_str().contains("1e400"), "{}", cut.as_str());
        for odd in ["{}", r#"{"completion":7}"#, r#"{"completion":{"values":"x"}}"#] {
            assert_eq!(at_most_so_many_values(&RawJson::trusted(odd)).as_str(), odd);
        }
    }

    // req: EXEC-12
    #[test]
    fn a_progress_token_is_replaced_and_everything_else_kept() {
        let sent = |wanted: Wanted, params: &str| {
            let (context, params, capabilities) = (ContextId::new(), RawJson::trusted(params), RawJson::trusted("{}"));
            outgoing_params(&Relay { context, upstreams: Vec::new(), wanted, params, capabilities }, 7)
                .as_str()
                .to_owned()
        };
        let uri = || Wanted::Contents("x://1".to_owned());
        assert_eq!(sent(uri(), r#"{"uri":"x://1","y":1e400}"#), r#"{"uri":"x://1","y":1e400}"#);
        assert_eq!(
            sent(
                Wanted::Prompt("n.n".to_owned()),
                r#"{"_meta":{"progressToken":"p","a":1.0,"io.modelcontextprotocol/related-task":{}},"name":"n_n"}"#
            ),
            r#"{"_meta":{"a":1.0,"progressToken":7},"name":"n.n"}"#
        );
        assert_eq!(
            sent(
                Wanted::PromptArgument("p".to_owned()),
                r#"{"ref":{"type":"ref/prompt","name":"u__p","title":"T"},"argument":{"name":"a","value":"\ud800"}}"#
            ),
            r#"{"ref":{"type":"ref/prompt","name":"p","title":"T"},"argument":{"name":"a","value":"\ud800"}}"#
        );
    }
}
