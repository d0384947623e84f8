//! `holdfast namespace`.

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
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
    let table = namespace.table.as_ref().map_or_else(String::new, |table| match table_state(table) {
        "READY" => " (READY)".to_owned(),
        state => format!(" ({state}: sessions of before that may hold something: {})", table.missing),
    });
    format!("{name} ({id}), {durability}{table}, created {made}\n{}", namespace.description).trim_end().to_owned()
}

async fn list(settings: &Settings) -> Result<()> {
    let next_page = async |page_token| {
        let list = ListNamespacesRequest { page_size: PAGE_SIZE, page_token };
        let page = call(list, async |request| settings.client.namespaces().list_namespaces(request).await).await?;
        Ok((page.namespaces, page.next_page_token))
    };
    print_list(settings, ["NAMESPACE", "ID", "DESCRIPTION"], next_page, row, value).await
}

fn row(namespace: &Namespace) -> [String; 3] {
    [namespace.name.clone(), namespace.id.clone(), namespace.description.clone()]
}
