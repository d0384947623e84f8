//! Overload: ten times as many clients as the service does its best with, none of which rests for longer than it is
//! told to when it is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use super::wait_for;
use crate::clients::{Client, LockName, Mode, Target};
use crate::cluster::{self, Tenant};
use crate::systems::System;
use holdfast_testkit::{Cluster, Setup};

/// How many times as many clients.
const OVERLOAD_FACTOR: usize = 10;
/// Numbers of clients among which the best is looked for.
const CLIENT_COUNTS: [usize; 4] = [16, 64, 128, 256];
/// Over how many accounts they are spread: no one's rate is what limits them.
const ACCOUNTS: usize = 4;
const NAMESPACES: usize = 16;
/// The part of the peak that the service has to do in the overload.
const MIN_SHARE_OF_PEAK: f64 = 0.85;
/// A pair that takes longer is useless to its client.
const MAX_USEFUL_LATENCY: Duration = Duration::from_secs(1);
/// How long a rejection asks clients to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overload {
    /// With so many clients the service does its best.
    pub best_clients: usize,
    /// Pairs a second then.
    pub peak_per_second: f64,
    /// Clients in the overload.
    pub clients: usize,
    /// Pairs a second that were done in time to be useful.
    pub goodput_per_second: f64,
    /// Pairs a second that came too late.
    pub late_per_second: f64,
    /// Calls a second that were refused with 429 or 503.
    pub shed_per_second: f64,
    /// Calls that failed in any other way.
    pub failed: u64,
    /// What the first of these said.
    pub first_failure: Option<String>,
}

impl Overload {
    /// Returns the part of the peak that the service did in the overload.
    pub fn share_of_peak(&self) -> f64 {
        self.goodput_per_second / self.peak_per_second
    }

    /// Checks that this is as much as it has to be.
    ///
    /// # Errors
    /// When it is less, or nothing was done at the peak.
    pub fn check(&self) -> Result<()> {
        let (share, least) = (100.0 * self.share_of_peak(), 100.0 * MIN_SHARE_OF_PEAK);
        ensure!(share >= least, "in the overload {share:.1} % of the peak were done, not {least:.0} %");
        Ok(())
    }

    /// Returns `pass` if it is, else `FAIL`.
    pub fn verdict(&self) -> &'static str {
        if self.check().is_ok() { "pass" } else { "FAIL" }
    }
}

#[derive(Default)]
struct Counts {
    useful: AtomicU64,
    late: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    first_failure: parking_lot::Mutex<Option<String>>,
}

/// Starts a cluster, looks for its peak, and goes beyond it.
///
/// # Errors
/// When the cluster fails.
pub async fn overload(setup: &Setup, length: Duration) -> Result<Overload> {
    let cluster = Cluster::start(setup.clone()).await;
    let mut tenants = Vec::new();
    for number in 0..ACCOUNTS {
        tenants.push(
            cluster::create_tenant_with_email(&cluster, &format!("crowd-{number}@example.com"), NAMESPACES).await?,
        );
    }
    let mut best: Option<(usize, f64)> = None;
    for clients in CLIENT_COUNTS {
        let (counts, seconds) = run_clients(&cluster, &tenants, clients, length).await?;
        let rate = counts.useful.load(Ordering::Relaxed) as f64 / seconds;
        eprintln!("overload: {clients} clients do {rate:.0} pairs/s");
        if best.is_none_or(|(_, peak)| rate > peak) {
            best = Some((clients, rate));
        }
    }
    let (best_clients, peak_per_second) = best.context("something was measured")?;
    let clients = best_clients * OVERLOAD_FACTOR;
    let (counts, seconds) = run_clients(&cluster, &tenants, clients, length).await?;
    let per_second = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds;
    let overload = Overload {
        best_clients,
        peak_per_second,
        clients,
        goodput_per_second: per_second(&counts.useful),
        late_per_second: per_second(&counts.late),
        shed_per_second: per_second(&counts.rejected),
        failed: counts.failed.load(Ordering::Relaxed),
        first_failure: counts.first_failure.lock().clone(),
    };
    let (share, least) = (100.0 * overload.share_of_peak(), 100.0 * MIN_SHARE_OF_PEAK);
    eprintln!("overload: {share:.1} % of the peak, at least {least:.0} %: {}", overload.verdict());
    Ok(overload)
}

/// So many clients, each of which asks again as soon as it is answered. What they came to in the window, and its length.
async fn run_clients(
    cluster: &Cluster,
    tenants: &[Tenant],
    clients: usize,
    length: Duration,
) -> Result<(Arc<Counts>, f64)> {
    let mut all = Vec::new();
    for tenant in tenants {
        let own = System::connect_holdfast(cluster, tenant, Target::Rest, clients / tenants.len(), &tenant.namespaces)
            .await?;
        all.extend(own.into_iter().enumerate().map(|(number, client)| {
            let namespace = tenant.namespaces[number % tenant.namespaces.len()].clone();
            (client, LockName::flat(&namespace, format!("crowd-{clients}-{number}")))
        }));
    }
    // Nothing counts until the window begins.
    let (counts, counting, stop) =
        (Arc::<Counts>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let tasks = all.into_iter().map(|(client, lock)| {
        tokio::spawn(run_client(client, lock, Arc::clone(&counts), Arc::clone(&counting), Arc::clone(&stop)))
    });
    let tasks: Vec<_> = tasks.collect();
    wait_for(WARM_UP).await;
    counting.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    wait_for(length).await;
    counting.store(false, Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    join_all(tasks).await;
    Ok((counts, seconds))
}

async fn run_client(
    mut client: Client,
    lock: LockName,
    counts: Arc<Counts>,
    counting: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let done = pair(&mut client, &lock).await;
        let is_counted = counting.load(Ordering::Relaxed);
        let count = match &done {
            Ok(()) if begun.elapsed() <= MAX_USEFUL_LATENCY => &counts.useful,
            Ok(()) => &counts.late,
            Err(error) if is_rejected(&error.to_string()) => &counts.rejected,
            Err(error) => {
                counts.first_failure.lock().get_or_insert_with(|| format!("{error:#}"));
                &counts.failed
            }
        };
        if is_counted {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if done.is_err() {
            wait_for(RETRY_AFTER).await;
        }
    }
}

async fn pair(client: &mut Client, lock: &LockName) -> Result<()> {
    let token = client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
    client.release(lock, token).await.map(drop)
}

fn is_rejected(error: &str) -> bool {
    error.starts_with("status 429") || error.starts_with("status 503")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_the_service_has_to_do_in_an_overload_is_an_error() {
        let with = |peak_per_second, goodput_per_second| Overload {
            best_clients: 64,
            peak_per_second,
            clients: 640,
            goodput_per_second,
            late_per_second: 0.0,
            shed_per_second: 0.0,
            failed: 0,
            first_failure: None,
        };
        assert!(with(1_000.0, 850.0).check().is_ok());
        let error = with(1_000.0, 849.0).check().unwrap_err().to_string();
        assert!(error.contains("84.9 %") && error.contains("85 %"), "{error}");
        assert_eq!(with(0.0, 0.0).verdict(), "FAIL");
    }
}
