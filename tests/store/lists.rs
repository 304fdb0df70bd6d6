//! Pages of tasks.

use std::time::Duration;

use taskhold::domain::cursor::Position;
use taskhold::domain::ids::TaskId;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::Task;
use taskhold::store::ScopedStore;

use super::{at, caller, contract_everywhere, end, new_task};
use crate::support::database::TestDatabase;

contract_everywhere! {
    pages_are_newest_first_and_whole,
    a_walk_shows_each_lasting_task_once,
    expired_tasks_are_left_out_at_once,
}

fn position(task: &Task) -> Position {
    Position { created: task.created, id: task.id }
}

async fn walk(scoped: &ScopedStore, size: u32) -> Vec<TaskId> {
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = scoped.list(after, size, at(1000)).await.unwrap();
        let Some(last) = page.last() else { return seen };
        after = Some(position(last));
        seen.extend(page.iter().map(|task| task.id));
    }
}

// req: TASK-16
async fn pages_are_newest_first_and_whole(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let mut made = Vec::new();
    // Several with the same time: then the id decides, bytewise on both databases.
    for second in [5, 1, 3, 3, 3, 3, 3, 3, 9] {
        let new = new_task(at(second));
        made.push((new.created, new.id));
        scoped.create(new).await.unwrap();
    }
    made.sort_by(|a, b| b.cmp(a));
    let expected: Vec<_> = made.into_iter().map(|(_, id)| id).collect();
    for size in [1, 2, 4, 100] {
        assert_eq!(walk(&scoped, size).await, expected, "pages of {size}");
    }
    assert!(scoped.list(None, 3, at(1000)).await.unwrap().len() == 3);
}

// req: TASK-20
async fn a_walk_shows_each_lasting_task_once(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let mut lasting = Vec::new();
    for second in 0..12 {
        let new = new_task(at(second));
        lasting.push(new.id);
        scoped.create(new).await.unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    for round in 0_u64.. {
        let page = scoped.list(after, 3, at(1000)).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(position(last));
        seen.extend(page.iter().map(|task| task.id));
        // Meanwhile a new one comes, a shown one ends, and the anchor of the next page expires and is deleted.
        scoped.create(new_task(at(100 + round))).await.unwrap();
        scoped.cancel(page[0].id, end(Outcome::Cancelled, at(500))).await.unwrap();
        let gone = taskhold::store::End { expires: Some(at(501)), ..end(Outcome::Cancelled, at(500)) };
        scoped.cancel(last.id, gone).await.unwrap();
        db.store.system().reap(at(900), 100).await.unwrap();
    }
    lasting.reverse();
    assert_eq!(seen, lasting);
}

// req: KEEP-02, TASK-19
async fn expired_tasks_are_left_out_at_once(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (live, kept, brief) = (new_task(at(0)), new_task(at(1)), new_task(at(2)));
    for task in [&live, &kept, &brief] {
        scoped.create(task.clone()).await.unwrap();
    }
    let forever = taskhold::store::End { expires: None, ..end(Outcome::Cancelled, at(3)) };
    scoped.cancel(kept.id, forever).await.unwrap();
    let brief_end = taskhold::store::End { expires: Some(at(60)), ..end(Outcome::Cancelled, at(3)) };
    scoped.cancel(brief.id, brief_end).await.unwrap();
    for now in [at(59), at(60) - Duration::from_micros(1), at(60), at(61), at(1_000_000)] {
        let listed: Vec<_> = scoped.list(None, 10, now).await.unwrap().iter().map(|task| task.id).collect();
        let mut visible = Vec::new();
        for id in [brief.id, kept.id, live.id] {
            if scoped.get(id).await.unwrap().unwrap().is_visible(now) {
                visible.push(id);
            }
        }
        assert_eq!(listed, visible, "{now:?}");
        assert_eq!(listed.len(), if now < at(60) { 3 } else { 2 });
    }
}
