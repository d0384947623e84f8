//! `holdfast sessions`.

use anyhow::Result;
use clap::Args;
use holdfast_client::protocol::{DeleteSessionRequest, GetSessionRequest, ListSessionsRequest, Session};
use serde_json::json;

use crate::calls::call;
use crate::output::Format;
use crate::render;
use crate::settings::Settings;
use crate::table::table;

const PAGE_SIZE: u32 = 1_000;

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
    let mut list = ListSessionsRequest { namespace, page_size: PAGE_SIZE, ..Default::default() };
    let mut rows = Vec::new();
    loop {
        let page = call(list.clone(), async |request| settings.client.sessions().list_sessions(request).await).await?;
        for session in &page.sessions {
            match settings.format {
                Format::Text => rows.push(row(session)),
                Format::Json => settings.format.print(String::new, || render::json::session(session))?,
            }
        }
        list.page_token = page.next_page_token;
        if list.page_token.is_empty() {
            break;
        }
    }
    if settings.format == Format::Json {
        return Ok(());
    }
    settings.format.print(|| table(["SESSION", "PROCESS", "HOLDS", "WAITING", "LEFT"], &rows), Default::default)
}

fn row(session: &Session) -> [String; 5] {
    let left = humantime::format_duration(std::time::Duration::from_millis(session.remaining_ms));
    let (id, process) = (session.session_id.clone(), session.process_id.clone());
    [id, process, session.holds.to_string(), session.waiting.to_string(), left.to_string()]
}
