//! `holdfast unlock`.

use anyhow::{Result, bail};
use clap::Args;
use holdfast_client::protocol::{DeleteLockRequest, ReleaseLockRequest};
use serde_json::json;

use crate::calls::call;
use crate::names::{LockName, parts};
use crate::render;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct UnlockArgs {
    #[command(flatten)]
    lock: LockName,
    /// The owner of the hold, as `holdfast lock` printed it.
    #[arg(long, env = "HOLDFAST_OWNER", value_name = "NAME")]
    owner: Option<String>,
    /// Only the hold with this fencing token.
    #[arg(long, value_name = "TOKEN", conflicts_with = "force")]
    token: Option<u64>,
    /// End the holds of all owners. Their programs are notified if they can be reached; needs a key with the scope
    /// locks:force.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(settings: &Settings, args: UnlockArgs) -> Result<()> {
    let name = args.lock.path();
    let (namespace, (path, whole_namespace)) = (settings.namespace()?, parts(&name));
    if args.force {
        let delete = DeleteLockRequest { namespace, path, whole_namespace, ..Default::default() };
        call(delete, async |request| settings.client.locks().delete_lock(request).await).await?;
        return settings.format.print(|| format!("{name} was forced open"), || json!({"forced": true}));
    }
    if args.owner.is_none() {
        crate::exit_misused("give --owner, as `holdfast lock` printed it, or --force to end the holds of everybody");
    }
    let (process_id, fencing_token) = (args.owner.clone(), args.token);
    let release =
        ReleaseLockRequest { namespace, path, whole_namespace, process_id, fencing_token, ..Default::default() };
    let answer = call(release, async |request| settings.client.locks().release_lock(request).await).await?;
    let (released, lock) = (answer.released, answer.lock.unwrap_or_default());
    if !released && args.token.is_some() {
        bail!("{name} is not held by {} with that token", args.owner.unwrap_or_default());
    }
    settings.format.print(
        || if released { format!("{name} is unlocked") } else { format!("{name} was not held by that owner") },
        || json!({"released": released, "lock": render::json::lock(&lock)}),
    )
}
