//! Clients that make tasks at a bounded rate, follow each to its end through whatever breaks, and write down all they see.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde_json::json;
use taskhold::lifecycle::spawn;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::history::{Era, History};
use super::person::{Made, PAUSE, Person};
use crate::support::client::Client;
use crate::support::modern::Modern;
use crate::support::rng::Rng;
use crate::support::server::new_token;

const PEOPLE: usize = 8;
pub const CONTEXTS: usize = 4;
/// A last look that fails so often is given up; the history says why.
const TRIES: usize = 5;
/// Looks at a time, when the load is over.
const READERS: usize = 24;

/// All clients of a scenario.
pub struct People {
    pub history: History,
    pub charges: PathBuf,
    people: Vec<Arc<Person>>,
    /// Who made which task, and what it runs.
    made: Made,
}

/// Clients at work.
pub struct Load {
    stop: CancellationToken,
    clients: Vec<JoinHandle<()>>,
}

impl People {
    /// Opens everybody's session at `url`; their tokens go straight into the database.
    pub async fn gather(url: &str, database_url: &str, charges: PathBuf) -> Self {
        let (history, made) = (History::new(), Made::default());
        let mut tokens = Vec::new();
        for context in 0..CONTEXTS {
            tokens.push(new_token(database_url, &format!("context {context}")).await);
        }
        let mut people = Vec::new();
        for number in 0..PEOPLE {
            let (context, era) = (number % CONTEXTS, if number < PEOPLE / 2 { Era::Legacy } else { Era::Modern });
            let token = &tokens[context];
            people.push(Arc::new(Person {
                context,
                number,
                era,
                legacy: Client::capable(url, token).await,
                modern: Modern::new(url, token).declaring(json!({ "elicitation": {} })).with_tasks(),
                history: history.clone(),
                charges: charges.clone(),
                made: Arc::clone(&made),
            }));
        }
        Self { history, charges, people, made }
    }

    /// Lets everybody make tasks, so many a second in all.
    pub fn work(&self, rate: usize, rng: &mut Rng) -> Load {
        let stop = CancellationToken::new();
        let pace = Duration::from_secs_f64(PEOPLE as f64 / rate as f64);
        let clients =
            self.people.iter().map(|person| spawn("client", Arc::clone(person).work(pace, rng.fork(), stop.clone())));
        Load { clients: clients.collect(), stop }
    }

    /// Follows every task that was told to its end, for so long at most.
    pub async fn settle(&self, bound: Duration) {
        let (over, pages) = (CancellationToken::new(), self.history.read());
        let ended: HashSet<String> = pages.ends().into_keys().map(str::to_owned).collect();
        let open = self.made.lock().unwrap().clone().into_iter().filter(|(task, _)| !ended.contains(task));
        let follows = open.map(|(task, (person, work))| {
            let (person, work, over) = (Arc::clone(&self.people[person]), pages.works[work].clone(), over.clone());
            async move { person.follow(&work, &task, true, &over).await }
        });
        let all = stream::iter(follows.collect::<Vec<_>>()).buffer_unordered(usize::MAX).for_each(async |()| {});
        let _in_time = tokio::time::timeout(bound, all).await;
        over.cancel();
    }

    /// Looks at every task once more, in both eras, each straight at some node of these, and at every list.
    pub async fn look_at_all(&self, nodes: &[String]) {
        let pages = self.history.read();
        let made: Vec<(String, usize)> =
            pages.made().into_iter().map(|(task, work)| (task.to_owned(), pages.works[work].context)).collect();
        let looks = made.into_iter().enumerate().map(|(turn, (task, context))| {
            let person = Arc::clone(&self.people[context]);
            let [here, there] = [turn, turn + 1].map(|turn| nodes[turn % nodes.len()].clone());
            async move {
                for (node, era) in [(here, Era::Legacy), (there, Era::Modern)] {
                    let person = person.at(&node);
                    let mut tries = 0;
                    while person.look(era, None, &task).await.is_none() && tries < TRIES {
                        tries += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
        stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(READERS).for_each(async |()| {}).await;
        for (context, person) in self.people[..CONTEXTS].iter().enumerate() {
            person.at(&nodes[context % nodes.len()]).list().await;
        }
    }

    /// How often each call ran that leaves a trace.
    pub fn runs(&self) -> HashMap<usize, usize> {
        let works = self.history.read().works;
        let counted = works.iter().enumerate().filter_map(|(number, work)| Some((number, work.runs(&self.charges)?)));
        counted.collect()
    }
}

impl Load {
    /// Lets every client end what it is at, without waiting for tasks.
    pub async fn stop(self) {
        self.stop.cancel();
        for client in self.clients {
            client.await.expect("no client panics");
        }
    }
}
