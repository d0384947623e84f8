//! What the operator sees.

use holdfast_console_tests::{Page, operator_token, tenant};

#[tokio::test]
async fn the_operator_sees_nodes_shards_and_accounts() {
    let tenant = tenant().await;
    let Some(page) = Page::signed_in(&operator_token()).await else { return };
    page.wait_for_texts(".side a", &["Cluster", "Accounts", "Audit"]).await;
    page.wait_for_words(".nodes", &["nd_1", "Ready", "leads"]).await;
    page.wait_for_words("tbody", &["locks_", "namespaces_", "nd_1", "leads"]).await;
    page.go("#/accounts").await;
    page.wait_for_words("tbody", &[&tenant.account, "ACTIVE"]).await;
    page.go("#/operations").await;
    page.wait_for_words("tbody", &["ACCOUNT_CREATED", &tenant.account]).await;
    page.close().await;
}
