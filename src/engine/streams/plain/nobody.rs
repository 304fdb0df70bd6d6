//! Who is asked where nobody is.

use async_trait::async_trait;

use super::NOT_SERVED;
use crate::domain::answer::refusal;
use crate::domain::input::{Answer, Question};
use crate::domain::work::UpstreamTask;
use crate::executor::{Event, Host, Unasked};

/// The host of a request of our own, which nobody waits for.
pub(in crate::engine) struct Nobody;

#[async_trait]
impl Host for Nobody {
    fn tell(&self, _event: Event) {}

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        let message = format!("nobody serves {}", question.kind.method());
        Err(Unasked(refusal(NOT_SERVED, "nobody_there", &message)))
    }

    async fn handed_over(&self, _to: UpstreamTask) -> bool {
        true
    }
}
