//! A gateway that has connected sessions and nothing else: it can end while everything else goes on.

use std::sync::Arc;

use anyhow::Result;
use holdfast_backend::Service;
use parking_lot::Mutex;

use crate::gateway_host::start_service;
use crate::world::World;

/// The gateway, in the process of another one.
pub(super) struct StreamGateway {
    world: Arc<World>,
    name: String,
    running: Mutex<Service>,
}

impl StreamGateway {
    /// Starts it.
    ///
    /// # Errors
    /// When a gateway can't start.
    pub(super) fn start(world: &Arc<World>, name: String) -> Result<Self> {
        let running = Mutex::new(start_service(world, &name)?);
        Ok(Self { world: Arc::clone(world), name, running })
    }

    /// Returns the one that runs.
    pub(super) fn service(&self) -> Service {
        self.running.lock().clone()
    }

    /// Ends it if it is to end, and starts another one in its place. Returns whether it did.
    pub(super) fn fall(&self) -> bool {
        let falls = self.world.lost.take_fall();
        if falls {
            self.replace();
        }
        falls
    }

    /// Ends it, and starts another one in its place.
    pub(super) fn replace(&self) {
        match start_service(&self.world, &self.name) {
            Ok(next) => {
                let ended = std::mem::replace(&mut *self.running.lock(), next);
                ended.end_streams();
                tokio::spawn(async move { ended.shutdown().await });
            }
            Err(error) => self.world.record_violation(format!("[lost answers] a gateway can't start: {error}")),
        }
    }
}
