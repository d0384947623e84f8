//! What the operator sees.

use holdfast_console_tests::{Page, create_tenant, operator_token};

#[tokio::test]
async fn the_operator_sees_nodes_shards_and_accounts() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&operator_token()).await else { return };
    page.wait_for_texts(".side a", &["Cluster", "Accounts", "Audit"]).await;
    page.wait_for_words(".nodes", &["nd_1", "Ready", "leads"]).await;
    page.wait_for_words("tbody", &["locks_", "namespaces_", "nd_1", "leads"]).await;
    page.navigate("#/accounts").await;
    page.wait_for_words("tbody", &[&tenant.account, "ACTIVE"]).await;
    page.navigate("#/operations").await;
    page.wait_for_words("tbody", &["ACCOUNT_CREATED", &tenant.account]).await;
    page.close().await;
}
