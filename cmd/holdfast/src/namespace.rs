//! `holdfast namespace`.

use anyhow::Result;
use clap::Subcommand;
use holdfast_client::protocol::{
    CreateNamespaceRequest, DeleteNamespaceRequest, GetNamespaceRequest, ListNamespacesRequest, Namespace,
    UpdateNamespaceRequest,
};
use serde_json::json;

use crate::calls::call;
use crate::pages::{PAGE_SIZE, print_list};
use crate::render::{self, json::namespace as value};
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

pub(crate) async fn run(settings: &Settings, command: NamespaceCommand) -> Result<()> {
    let client = &settings.client;
    let shown = match command {
        NamespaceCommand::Create { name, description } => {
            let create = CreateNamespaceRequest { name, description };
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
    format!("{} ({}), created {made}\n{}", namespace.name, namespace.id, namespace.description).trim_end().to_owned()
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
