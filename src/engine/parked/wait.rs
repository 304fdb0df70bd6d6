//! What a parked call comes to while a request waits for it, at whichever node; and its end when none does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{PAUSE, Round, Waits, keys, unless_away};
use crate::domain::clock::Timestamp;
use crate::domain::round::RoundState;
use crate::engine::{Called, Created, Engine, Refusal};
use crate::store::{Given, Parked, StoreError};

/// What is asked within this time of each other goes out together.
const SETTLING: Duration = Duration::from_millis(40);
/// As long as there is always more, at most so many times that long.
const MOST_SETTLINGS: u32 = 10;

impl Engine {
    /// What a parked call comes to next: its end, its next round, or the task that it becomes. A call that nobody can come
    /// back to ends with this request.
    pub(in crate::engine) async fn until_next(
        self: &Arc<Self>,
        waits: Waits,
        stop: CancellationToken,
    ) -> Result<Called, Refusal> {
        let next = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(Called::Stopped),
            next = self.next_of(&waits) => next,
        };
        match &next {
            Ok(Called::Outcome(_)) => self.forget_rounds(&waits).await,
            Ok(Called::Stopped) => self.cancel_unknown_task(waits.call, "cancelled by request"),
            Err(_) if waits.is_alone => self.cancel_unknown_task(waits.call, "its caller could not be asked"),
            Ok(_) | Err(_) => {}
        }
        next
    }

    async fn next_of(self: &Arc<Self>, waits: &Waits) -> Result<Called, Refusal> {
        let waiter = self.waiters.wait_for(waits.call, None).for_questions();
        let mut due: Pin<Box<dyn Future<Output = ()> + Send>> = match &waits.becomes {
            Some(becomes) => Box::pin(sleep(becomes.grace)),
            None => Box::pin(std::future::pending()),
        };
        let (mut prolonged, mut is_due) = (Instant::now(), false);
        loop {
            // Registered before the look, so that nothing between the two is missed.
            let woken = waiter.ended.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let Some(found) = self.look_at(waits).await? else { continue };
            // What a task asks is asked by other means.
            let asks = found.parked && !found.waiting.is_empty();
            let is_task_now = waits.becomes.is_some() && (!found.parked || is_due && !asks);
            if found.outcome.is_some() || is_task_now || asks {
                let next = if asks { self.ask_by_round(waits, found).await } else { self.come_to(waits, found).await };
                match next? {
                    Some(called) => return Ok(called),
                    None => continue,
                }
            }
            tokio::select! {
                () = woken => {}
                () = &mut due, if !is_due => is_due = true,
                () = sleep_until(prolonged + self.rules.rounds.timeout / 3) => {
                    prolonged = Instant::now();
                    self.prolong(waits).await;
                }
            }
        }
    }

    /// `None` while the database is away.
    async fn look_at(&self, waits: &Waits) -> Result<Option<Parked>, Refusal> {
        match unless_away(self.store.scoped(&waits.caller.auth).parked(waits.call).await).await? {
            Some(None) => Err(Refusal::BadState),
            found => Ok(found.flatten()),
        }
    }

    /// How the request is answered by a call that has ended, or that is a task, or is to be one now; `None` if that is to be
    /// looked at again.
    async fn come_to(&self, waits: &Waits, found: Parked) -> Result<Option<Called>, Refusal> {
        let Some(becomes) = &waits.becomes else { return Ok(found.outcome.map(Called::Outcome)) };
        if found.parked {
            match unless_away(self.store.scoped(&waits.caller.auth).unpark(waits.call).await).await? {
                Some(true) => {}
                // Given up at this moment: its end comes.
                Some(false) => {
                    sleep(PAUSE).await;
                    return Ok(None);
                }
                None => return Ok(None),
            }
        }
        let immediate_response = becomes.immediate_response.clone();
        Ok(Some(Called::Promoted(Box::new(Created { task: found.task, immediate_response }))))
    }

    /// Asks everything that is open; `None` if that is to be looked at again.
    async fn ask_by_round(self: &Arc<Self>, waits: &Waits, mut found: Parked) -> Result<Option<Called>, Refusal> {
        for _ in 0..MOST_SETTLINGS {
            let before: Vec<_> = found.waiting.iter().map(|open| open.id).collect();
            sleep(SETTLING).await;
            match self.look_at(waits).await? {
                Some(now) => found = now,
                None => return Ok(None),
            }
            if found.outcome.is_some() || found.waiting.is_empty() || !found.parked {
                return Ok(None);
            }
            if found.waiting.iter().map(|open| open.id).eq(before) {
                break;
            }
        }
        // This request may not declare what the first one did.
        let declared = waits.caller.declared();
        let mut is_lacking = false;
        for open in &found.waiting {
            if let Some(error) = declared.lacks(&open.question) {
                self.give(waits, open.id, error).await?;
                is_lacking = true;
            }
        }
        if is_lacking {
            return Ok(None);
        }
        let rules = &self.rules.rounds;
        let store = self.store.scoped(&waits.caller.auth);
        let given = store.give_round(waits.call, self.clock.now() + rules.timeout, rules.calls).await;
        let round = match unless_away(given).await? {
            Some(Given::Round(round)) => round,
            Some(Given::Full) => {
                return Err(Refusal::LimitReached {
                    limit: "limits.parked_calls",
                    most: rules.calls as u64,
                    retry_after: rules.timeout.min(Duration::from_secs(60)),
                });
            }
            // It became a task at this moment, or was given up: its end comes.
            Some(Given::Closed) => {
                sleep(PAUSE).await;
                return Ok(None);
            }
            None => return Ok(None),
        };
        let state = RoundState { call: waits.call, round };
        let asked: Vec<_> = found.waiting.iter().map(|open| open.id).collect();
        let state = self.parked.key.seal(waits.caller.auth.id(), &waits.request, state, &asked);
        let questions = keys(&found.waiting).map(|(key, open)| (key, open.question.clone())).collect();
        tracing::debug!(call.id = %waits.call, round, "a call asks its caller by its answer");
        Ok(Some(Called::Asks(Box::new(Round { call: waits.call, state, questions }))))
    }

    /// Nobody gives the call up while somebody waits for it.
    async fn prolong(&self, waits: &Waits) {
        let state = RoundState { call: waits.call, round: waits.round };
        let until = self.clock.now() + self.rules.rounds.timeout;
        if let Err(error) = self.store.scoped(&waits.caller.auth).keep_round(state, until).await {
            tracing::debug!(call.id = %waits.call, %error, "a round cannot be prolonged; trying again");
        }
    }

    async fn forget_rounds(&self, waits: &Waits) {
        if waits.round > 0
            && let Err(error) = self.store.scoped(&waits.caller.auth).close_rounds(waits.call).await
        {
            tracing::debug!(call.id = %waits.call, %error, "what a call asked is forgotten when its time has come");
        }
    }

    /// Ends the calls to whose rounds nobody came back in time; answers how many. One that cannot be ended is found again.
    pub(in crate::engine) async fn give_up_rounds(
        self: &Arc<Self>,
        now: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let mut all = 0;
        loop {
            let late = self.store.system().give_up_rounds(now, limit).await?;
            all += late.len() as u64;
            for call in &late {
                if let Err(error) = self.try_cancel_unknown_task(*call, "nobody came back to what it asked").await {
                    tracing::debug!(call.id = %call, %error, "a call that nobody comes back to cannot be ended yet");
                }
            }
            if late.len() < limit as usize {
                return Ok(all);
            }
        }
    }
}
