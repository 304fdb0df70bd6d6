//! The only place that says how a status may change (LIFE-01 to LIFE-04, LIFE-07).
//!
//! The store's conditional writes carry the same rule in their WHERE clauses: `status IN (0, 1)` is
//! [`sources`] of [`Event::End`]. A test of the store compares the two.

use super::outcome::Ending;
use super::task::Status;

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The work asks for input.
    Ask,
    /// The last outstanding question was answered or withdrawn.
    Answered,
    /// The work ended, or was ended.
    End(Ending),
}

/// The status of a new task.
pub const INITIAL: Status = Status::Working;

/// The status after `event`, or `None` if it may not happen to a task that stands at `from`.
#[must_use]
pub const fn next(from: Status, event: Event) -> Option<Status> {
    match (from, event) {
        (Status::Working | Status::InputRequired, Event::Ask) => Some(Status::InputRequired),
        (Status::InputRequired, Event::Answered) => Some(Status::Working),
        (Status::Working | Status::InputRequired, Event::End(ending)) => Some(Status::Ended(ending)),
        (Status::Working, Event::Answered) | (Status::Ended(_), _) => None,
    }
}

/// Every status in which `event` may happen.
pub fn sources(event: Event) -> impl Iterator<Item = Status> {
    Status::ALL.into_iter().filter(move |&from| next(from, event).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 6] = [
        Event::Ask,
        Event::Answered,
        Event::End(Ending::Completed),
        Event::End(Ending::ToolError),
        Event::End(Ending::Failed),
        Event::End(Ending::Cancelled),
    ];

    // req: LIFE-01, LIFE-02, LIFE-03
    #[test]
    fn only_the_specified_paths_exist() {
        assert_eq!(INITIAL, Status::Working);
        let from_working: Vec<_> = EVENTS.iter().filter_map(|&event| next(Status::Working, event)).collect();
        assert_eq!(
            from_working,
            [
                Status::InputRequired,
                Status::Ended(Ending::Completed),
                Status::Ended(Ending::ToolError),
                Status::Ended(Ending::Failed),
                Status::Ended(Ending::Cancelled)
            ]
        );
        let from_input: Vec<_> = EVENTS.iter().filter_map(|&event| next(Status::InputRequired, event)).collect();
        assert_eq!(
            from_input,
            [
                Status::InputRequired, // one more question; not a change
                Status::Working,
                Status::Ended(Ending::Completed),
                Status::Ended(Ending::ToolError),
                Status::Ended(Ending::Failed),
                Status::Ended(Ending::Cancelled)
            ]
        );
    }

    // req: LIFE-04, LIFE-07
    #[test]
    fn nothing_follows_an_end() {
        for from in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
            for event in EVENTS {
                assert_eq!(next(from, event), None, "{from:?} {event:?}");
            }
        }
    }

    #[test]
    fn codes_are_stable() {
        assert_eq!(Status::ALL.map(Status::code), [0, 1, 2, 3, 4, 5]);
        assert!(Status::ALL.into_iter().all(|status| Status::from_code(status.code()) == Some(status)));
        assert_eq!(Status::from_code(6), None);
    }

    #[test]
    fn an_end_comes_only_to_the_living() {
        let codes: Vec<_> = sources(Event::End(Ending::Cancelled)).map(Status::code).collect();
        assert_eq!(codes, [0, 1]);
    }
}
