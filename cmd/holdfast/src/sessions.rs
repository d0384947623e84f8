//! `holdfast sessions`.

use anyhow::Result;
use clap::Args;
use holdfast_client::protocol::{DeleteSessionRequest, GetSessionRequest, ListSessionsRequest, Session};
use serde_json::json;

use crate::calls::call;
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    /// Show only this one.
    #[arg(value_name = "SESSION")]
    id: Option<String>,
    /// End this session with all its holds and requests, at once.
    #[arg(long, requires = "id")]
    end: bool,
}

pub(crate) async fn run(settings: &Settings, args: SessionsArgs) -> Result<()> {
    let namespace = settings.namespace()?;
    match args.id {
        Some(session_id) if args.end => {
            let delete = DeleteSessionRequest { namespace, session_id: session_id.clone() };
            call(delete, async |request| settings.client.sessions().delete_session(request).await).await?;
            settings.format.print(|| format!("{session_id} has ended"), || json!({"ended": session_id}))
        }
        Some(session_id) => {
            let get = GetSessionRequest { namespace, session_id };
            let session = call(get, async |request| settings.client.sessions().get_session(request).await).await?;
            settings.format.print(|| render::session(&session), || render::json::session(&session))
        }
        None => list(settings, namespace).await,
    }
}

async fn list(settings: &Settings, namespace: String) -> Result<()> {
    let next_page = async |page_token| {
        let list = ListSessionsRequest { namespace: namespace.clone(), page_size: PAGE_SIZE, page_token };
        let page = call(list, async |request| settings.client.sessions().list_sessions(request).await).await?;
        Ok((page.sessions, page.next_page_token))
    };
    print_list(settings, ["SESSION", "PROCESS", "HOLDS", "WAITING", "LEFT"], next_page, row, render::json::session)
        .await
}

fn row(session: &Session) -> [String; 5] {
    let left = humantime::format_duration(std::time::Duration::from_millis(session.remaining_ms));
    let (id, process) = (session.session_id.clone(), session.process_id.clone());
    [id, process, session.holds.to_string(), session.waiting.to_string(), left.to_string()]
}
