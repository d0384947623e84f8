//! `holdfast namespace`.

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use holdfast_client::protocol::namespace::Table;
use holdfast_client::protocol::{
    self, CreateNamespaceRequest, DeleteNamespaceRequest, GetNamespaceRequest, ListNamespacesRequest, Namespace,
    UpdateNamespaceRequest,
};
use serde_json::json;

use crate::calls::call;
use crate::pages::{PAGE_SIZE, print_list};
use crate::render::{self, json::durability_name, json::namespace as value, json::table_state};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// Create a namespace.
    Create {
        /// 1 to 128 bytes.
        name: String,
        /// Its purpose.
        #[arg(long, default_value = "")]
        description: String,
        /// Where its locks are kept, for good.
        #[arg(long, value_enum, default_value_t = DurabilityArg::Full)]
        durability: DurabilityArg,
    },
    /// List the namespaces of the account.
    Ls,
    /// Show a namespace.
    Get {
        /// Its name.
        name: String,
    },
    /// Change the description of a namespace.
    Update {
        /// Its name.
        name: String,
        /// Its purpose.
        #[arg(long)]
        description: String,
    },
    /// Delete a namespace with all its locks and sessions.
    Delete {
        /// Its name.
        name: String,
        /// Only the namespace with this id, not one recreated under its name.
        #[arg(long, default_value = "", hide_default_value = true)]
        id: String,
    },
}

/// Where the locks of a new namespace are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// In the log.
    Full,
    /// In the memory of a leader; the log has the sessions.
    Session,
}

impl From<DurabilityArg> for protocol::Durability {
    fn from(durability: DurabilityArg) -> Self {
        match durability {
            DurabilityArg::Full => Self::Full,
            DurabilityArg::Session => Self::Session,
        }
    }
}

pub(crate) async fn run(settings: &Settings, command: NamespaceCommand) -> Result<()> {
    let client = &settings.client;
    let shown = match command {
        NamespaceCommand::Create { name, description, durability } => {
            let durability = protocol::Durability::from(durability).into();
            let create = CreateNamespaceRequest { name, description, durability };
            call(create, async |request| client.namespaces().create_namespace(request).await).await?
        }
        NamespaceCommand::Get { name } => {
            let get = GetNamespaceRequest { name };
            call(get, async |request| client.namespaces().get_namespace(request).await).await?
        }
        NamespaceCommand::Update { name, description } => {
            let update = UpdateNamespaceRequest { name, description: Some(description) };
            call(update, async |request| client.namespaces().update_namespace(request).await).await?
        }
        NamespaceCommand::Delete { name, id } => {
            let delete = DeleteNamespaceRequest { name: name.clone(), id };
            call(delete, async |request| client.namespaces().delete_namespace(request).await).await?;
            return settings.format.print(|| format!("{name} is deleted"), || json!({"deleted": name}));
        }
        NamespaceCommand::Ls => return list(settings).await,
    };
    settings.format.print(|| text(&shown), || value(&shown))
}

fn text(namespace: &Namespace) -> String {
    let made = namespace.created_at.as_ref().and_then(render::timestamp).unwrap_or_default();
    let (name, id, durability) = (&namespace.name, &namespace.id, durability_name(namespace));
    let mut shown = format!("{name} ({id}), {durability}, created {made}");
    let description = Some(&namespace.description).filter(|description| !description.is_empty());
    for line in description.cloned().into_iter().chain(namespace.table.as_ref().map(table_text)) {
        shown += &format!("\n{line}");
    }
    shown
}

/// Formats how far the lock table of a namespace is.
pub(crate) fn table_text(table: &Table) -> String {
    let (state, sessions) = (table_state(table), table.sessions);
    let Some(since) = table.since.as_ref().and_then(render::timestamp) else {
        return format!("lock table {state}: its leader has not begun it, sessions: {sessions}");
    };
    let mut shown = format!("lock table {state} since {since}, epoch {}, sessions: {sessions}", table.epoch);
    if table.missing > 0 {
        shown += &format!(", earlier ones that it waits for: {}", table.missing);
    }
    if !table.waiting_for.is_empty() {
        shown += &format!(" ({})", table.waiting_for.join(", "));
    }
    shown
}

async fn list(settings: &Settings) -> Result<()> {
    let next_page = async |page_token| {
        let list = ListNamespacesRequest { page_size: PAGE_SIZE, page_token };
        let page = call(list, async |request| settings.client.namespaces().list_namespaces(request).await).await?;
        Ok((page.namespaces, page.next_page_token))
    };
    print_list(settings, ["NAMESPACE", "ID", "DURABILITY", "DESCRIPTION"], next_page, row, value).await
}

fn row(namespace: &Namespace) -> [String; 4] {
    let durability = durability_name(namespace).to_owned();
    [namespace.name.clone(), namespace.id.clone(), durability, namespace.description.clone()]
}

#[cfg(test)]
mod tests {
    use holdfast_client::protocol::namespace::table::State;
    use prost_types::Timestamp;

    use super::*;

    #[test]
    fn a_table_that_is_not_complete_is_shown_with_the_sessions_that_it_waits_for() {
        let table = Table {
            epoch: 7,
            since: Some(Timestamp { seconds: 0, nanos: 5_000_000 }),
            sessions: 3,
            missing: 2,
            waiting_for: vec!["se_1".into(), "se_2".into()],
            ..Table::default()
        };
        let shown = "lock table REBUILDING since 1970-01-01T00:00:00.005Z, epoch 7, sessions: 3, earlier ones that it \
                     waits for: 2 (se_1, se_2)";
        assert_eq!(table_text(&table), shown);
        let ready = Table { state: State::Ready.into(), missing: 0, waiting_for: Vec::new(), ..table.clone() };
        assert_eq!(table_text(&ready), "lock table READY since 1970-01-01T00:00:00.005Z, epoch 7, sessions: 3");
        let begins = Table { since: None, ..table };
        assert_eq!(table_text(&begins), "lock table REBUILDING: its leader has not begun it, sessions: 3");
    }
}
