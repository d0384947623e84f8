//! The session of a client: opened, kept alive by a task, and closed, or left to expire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::Code;
use rand::Rng;
use tokio::time::sleep;

use super::{Client, STABLE_NAMESPACES};
use crate::history::{Answer, Op};
use crate::world::{Phase, Tenant};

const TTLS_MS: [u64; 3] = [1_000, 1_500, 3_000];

/// A session with keep-alives.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) tenant: usize,
    pub(super) namespace: &'static str,
    /// The keeper falls silent, or has found that the session is gone.
    is_abandoned: Arc<AtomicBool>,
}

impl Client {
    /// Opens a session, or ends the one there is, now and then.
    pub(super) async fn update_session(&mut self, tenants: &[Tenant]) {
        match &self.session {
            None if self.rng.random_bool(0.1) => self.open_session(tenants).await,
            Some(session) if session.is_abandoned.load(Ordering::Relaxed) => self.session = None,
            Some(_) if self.rng.random_bool(0.03) => self.end_session(tenants).await,
            _ => {}
        }
    }

    async fn open_session(&mut self, tenants: &[Tenant]) {
        let tenant = self.rng.random_range(0..tenants.len());
        let namespace = STABLE_NAMESPACES[self.rng.random_range(0..STABLE_NAMESPACES.len())];
        let ttl_ms = self.draw_time(&TTLS_MS);
        let op = Op::OpenSession { process: self.name.clone(), ttl_ms };
        let Answer::Session { id } = self.call(&tenants[tenant], namespace, op).await else { return };
        let is_abandoned = Arc::new(AtomicBool::new(false));
        self.sessions += 1;
        let name = format!("{}.keeper{}", self.name, self.sessions);
        let keeper = Client::new(Arc::clone(&self.world), self.service.clone(), name);
        tokio::spawn(keeper.run_keep_alive(
            tenants[tenant].clone(),
            namespace,
            id.clone(),
            ttl_ms,
            Arc::clone(&is_abandoned),
        ));
        self.session = Some(Session { id, tenant, namespace, is_abandoned });
    }

    /// Closes the session, or leaves it to itself.
    async fn end_session(&mut self, tenants: &[Tenant]) {
        let Some(session) = self.session.take() else { return };
        session.is_abandoned.store(true, Ordering::Relaxed);
        if self.rng.random_bool(0.5) {
            let op = Op::CloseSession { session: session.id };
            self.call(&tenants[session.tenant], session.namespace, op).await;
        }
    }

    async fn run_keep_alive(
        mut self,
        tenant: Tenant,
        namespace: &'static str,
        session: String,
        ttl_ms: u64,
        is_left: Arc<AtomicBool>,
    ) {
        // Some are late repeatedly: their keep-alives arrive while their expiry is being decided.
        let slowest = if self.rng.random_bool(0.25) { 1.05 } else { 0.5 };
        let quickest = slowest - 0.2;
        while self.world.phase() == Phase::Chaos && !is_left.load(Ordering::Relaxed) {
            let pause = Duration::from_millis(ttl_ms).mul_f64(self.rng.random_range(quickest..slowest));
            sleep(pause).await;
            let op = Op::KeepAlive { session: session.clone(), ttl_ms };
            if self.call(&tenant, namespace, op).await == Answer::Refused(Code::SessionNotFound) {
                is_left.store(true, Ordering::Relaxed);
            }
        }
    }
}
