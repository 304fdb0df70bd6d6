//! Whether every state that can be reached has a way to the end by steps that can be counted on. The library's own check of what
//! happens eventually overlooks cycles, and this protocol is full of them: heartbeats, claims that are given back.

use std::collections::HashMap;

use stateright::Model as _;

use super::Protocol;
use super::state::State;
use super::steps::Step;

pub struct Reach {
    pub states: usize,
    /// The steps to a state that has no way to the end.
    pub stuck: Option<(Vec<Step>, State)>,
}

impl Reach {
    pub fn of(protocol: &Protocol) -> Self {
        let mut states: Vec<State> = protocol.init_states();
        let mut numbers: HashMap<State, usize> = states.iter().cloned().zip(0..).collect();
        // By which step from which state each was found first, and from where fair steps lead to it.
        let mut found_by: Vec<Option<(usize, Step)>> = vec![None; states.len()];
        let mut fair_from: Vec<Vec<usize>> = vec![Vec::new(); states.len()];
        let mut at = 0;
        let mut steps = Vec::new();
        while at < states.len() {
            steps.clear();
            protocol.actions(&states[at], &mut steps);
            for &step in &steps {
                let Some(after) = protocol.next_state(&states[at], step) else { continue };
                let number = *numbers.entry(after).or_insert_with_key(|after| {
                    states.push(after.clone());
                    found_by.push(Some((at, step)));
                    fair_from.push(Vec::new());
                    states.len() - 1
                });
                if step.is_fair(&states[at]) {
                    fair_from[number].push(at);
                }
            }
            at += 1;
        }
        let mut ends: Vec<bool> = states.iter().map(State::has_ended).collect();
        let mut open: Vec<usize> = (0..states.len()).filter(|&state| ends[state]).collect();
        while let Some(state) = open.pop() {
            for &from in &fair_from[state] {
                if !std::mem::replace(&mut ends[from], true) {
                    open.push(from);
                }
            }
        }
        let stuck = ends.iter().position(|&ends| !ends).map(|state| {
            let mut steps = Vec::new();
            let mut at = state;
            while let Some((from, step)) = found_by[at] {
                steps.push(step);
                at = from;
            }
            steps.reverse();
            (steps, states[state].clone())
        });
        Self { states: states.len(), stuck }
    }
}
