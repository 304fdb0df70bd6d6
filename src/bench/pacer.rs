//! Lets planned operations begin when they are due.

use std::io;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::schedule::Schedule;
use crate::domain::clock::Clock;

/// Adds a permit to `gate` for each operation that is due, and at the end one for each of the `workers`, which find then that
/// it is over.
pub(super) async fn pace(
    schedule: &Schedule,
    clock: &dyn Clock,
    gate: &Semaphore,
    workers: usize,
    stop: &CancellationToken,
) -> io::Result<()> {
    let paced = tokio::select! {
        () = stop.cancelled() => None,
        paced = release(schedule, clock, gate) => Some(paced),
    };
    if !matches!(paced, Some(Ok(()))) {
        schedule.stop(clock.boot());
    }
    gate.add_permits(workers);
    paced.unwrap_or(Ok(()))
}

async fn release(schedule: &Schedule, clock: &dyn Clock, gate: &Semaphore) -> io::Result<()> {
    let timer = Timer::new()?;
    let mut released = 0;
    while let Some(next) = schedule.planned(released) {
        let now = clock.boot();
        if let Some(time) = next.checked_sub(now).filter(|time| !time.is_zero()) {
            timer.wait(time).await?;
            continue;
        }
        let due = schedule.due(now);
        gate.add_permits(usize::try_from(due - released).unwrap_or(Semaphore::MAX_PERMITS));
        released = due;
    }
    Ok(())
}

/// Tokio's timers go by whole milliseconds, which would be most of what is measured; the kernel's do not.
#[cfg(target_os = "linux")]
struct Timer(tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>);

#[cfg(target_os = "linux")]
impl Timer {
    fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "its successor is unsafe, for descriptors that are not owned; this one is")]
        tokio::io::unix::AsyncFd::new(timer).map(Self)
    }

    async fn wait(&self, time: Duration) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let seconds = time.as_secs().try_into().unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &Itimerspec { it_interval: none, it_value })?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|timer| rustix::io::read(timer.get_ref(), &mut [0; 8]).map_err(io::Error::from));
            match read {
                Ok(expired) => return expired.map(drop),
                Err(_not_yet) => {}
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn wait(&self, time: Duration) -> io::Result<()> {
        tokio::time::sleep(time).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Pace;
    use super::*;
    use crate::domain::clock::SystemClock;

    #[tokio::test]
    async fn no_operation_begins_before_it_is_planned_and_workers_are_let_go_at_the_end() {
        let clock = SystemClock::new();
        let pace_of = Pace { rate: Some(2000), duration: None, requests: Some(20) };
        let schedule = Schedule::new(pace_of, clock.boot());
        let (gate, stop) = (Semaphore::new(0), CancellationToken::new());
        let begin = async {
            let mut begun = 0;
            loop {
                gate.acquire().await.unwrap().forget();
                let Some(planned) = schedule.take(clock.boot()) else { return begun };
                assert!(clock.boot() >= planned);
                begun += 1;
            }
        };
        let (paced, begun) = tokio::join!(pace(&schedule, &*clock, &gate, 1, &stop), begin);
        paced.unwrap();
        assert_eq!((begun, gate.available_permits()), (20, 0));
    }

    #[tokio::test]
    async fn a_stop_lets_workers_go_at_once() {
        let clock = SystemClock::new();
        let pace_of = Pace { rate: Some(1), duration: Some(Duration::from_secs(3600)), requests: None };
        let schedule = Schedule::new(pace_of, clock.boot() + Duration::from_secs(3600));
        let (gate, stop) = (Semaphore::new(0), CancellationToken::new());
        stop.cancel();
        pace(&schedule, &*clock, &gate, 3, &stop).await.unwrap();
        assert_eq!(gate.available_permits(), 3);
    }
}
