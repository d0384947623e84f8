//! `holdfast get`.

use anyhow::Result;
use clap::Args;
use holdfast_client::protocol::GetLockRequest;

use crate::calls::call;
use crate::names::{LockName, parts};
use crate::render;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    lock: LockName,
}

pub(crate) async fn run(settings: &Settings, args: GetArgs) -> Result<()> {
    let (path, whole_namespace) = parts(&args.lock.path());
    let get = GetLockRequest { namespace: settings.namespace()?, path, whole_namespace, ..Default::default() };
    let answer = call(get, async |request| settings.client.locks().get_lock(request).await).await?;
    let lock = answer.lock.unwrap_or_default();
    settings.format.print(|| render::lock(&lock), || render::json::lock(&lock))
}
