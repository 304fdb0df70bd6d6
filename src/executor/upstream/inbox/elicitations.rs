//! URL elicitations whose completion may be told, and the calls that were asked for them.
//!
//! An id is the upstream's: it may be used again, by a later call or by several at once, and then names each of them.

use std::collections::VecDeque;

/// Elicitations of all calls of a link; more make it forget the oldest.
const MOST: usize = 256;

#[derive(Default)]
pub(super) struct Elicitations(VecDeque<Elicitation>);

struct Elicitation {
    id: String,
    call: u64,
}

impl Elicitations {
    /// A call was asked, for the first time or again.
    pub(super) fn asked(&mut self, id: &str, call: u64) {
        self.forget(id, call);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Elicitation { id: id.to_owned(), call });
    }

    /// Who was asked and has not been told of a completion since.
    pub(super) fn calls(&self, id: &str) -> Vec<u64> {
        self.0.iter().filter(|known| known.id == id).map(|known| known.call).collect()
    }

    pub(super) fn forget(&mut self, id: &str, call: u64) {
        self.0.retain(|known| known.call != call || known.id != id);
    }

    pub(super) fn call_ended(&mut self, call: u64) {
        self.0.retain(|known| known.call != call);
    }
}
