//! A watcher: reads the events of a namespace, and resumes after the last one if its stream ends.

use std::sync::Arc;

use holdfast_api::{ApiResult, WatchEvents};
use holdfast_backend::{CallContext, EventStream, Service};
use tokio::time::{Duration, sleep};

use crate::watch_log::WatchLog;
use crate::world::{Tenant, World};

/// Between two attempts to begin.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Watches for as long as its gateway runs.
pub(crate) async fn watch(world: Arc<World>, service: Service, tenant: Tenant, namespace: &'static str, name: String) {
    let seen = world.watched.add_watcher(&name, tenant.account, namespace);
    loop {
        if let Ok(mut stream) = open(&service, &tenant, namespace, world.watched.resume_revision(seen)).await {
            world.watched.record_start(seen, stream.next_revision());
            record_pages(&world.watched, seen, &mut stream).await;
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn open(
    service: &Service,
    tenant: &Tenant,
    namespace: &str,
    from_revision: Option<u64>,
) -> ApiResult<EventStream> {
    let context = CallContext::new("watch");
    let bearer = Some(tenant.api_key.as_str());
    let caller = service.authenticate(bearer, &context).await?;
    let request = WatchEvents { namespace: namespace.to_owned(), from_revision, ..WatchEvents::default() };
    service.watch_events(&caller, &context, request).await
}

async fn record_pages(watched: &WatchLog, seen: usize, stream: &mut EventStream) {
    while let Ok(page) = stream.next().await {
        watched.record_page(seen, page);
    }
}
