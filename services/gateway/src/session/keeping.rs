//! Signs of life of a session, beside its commands.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::Reply;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::place::Place;
use crate::error::ApiResult;

/// Signs of life come so often in a session's time to live, when the gateway gives them.
const BEATS: u32 = 3;
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// One sign of life at a time. Those asked for meanwhile share the next one: each is answered by one that was sent after
/// it came.
pub(super) struct Keeping {
    place: Arc<Place>,
    running: Option<BoxFuture<'static, ApiResult<Reply>>>,
    /// How many the running one answers.
    owed: usize,
    /// How many wait for the next one.
    asked: usize,
    beats: Option<Interval>,
}

impl Keeping {
    /// With `by_itself` it gives signs of life without being asked.
    pub(super) fn new(place: Arc<Place>, by_itself: bool) -> Self {
        let beats = by_itself.then(|| {
            let beat = (Duration::from_millis(place.ttl_ms) / BEATS).max(SHORTEST_BEAT);
            let mut beats = interval_at(Instant::now() + beat, beat);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            beats
        });
        Self { place, running: None, owed: 0, asked: 0, beats }
    }

    /// The client asks for one.
    pub(super) fn ask(&mut self) {
        self.asked += 1;
    }

    /// The next one's outcome, and how many it answers. Can be dropped and called again without losing anything.
    pub(super) async fn next(&mut self) -> (usize, ApiResult<Reply>) {
        loop {
            if let Some(running) = &mut self.running {
                let outcome = running.await;
                self.running = None;
                return (std::mem::take(&mut self.owed), outcome);
            }
            if self.asked == 0 {
                match &mut self.beats {
                    Some(beats) => drop(beats.tick().await),
                    None => pending().await,
                }
            }
            self.owed = std::mem::take(&mut self.asked);
            self.running = Some(Arc::clone(&self.place).keep_alive().boxed());
        }
    }
}
