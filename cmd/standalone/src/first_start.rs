//! The calls of the first start, made in this process: the listener may need certificates that are for other machines.

use holdfast_api::{ApiError, CreateAccount, CreateApiKey, CreateNamespace, LimitsPatch, UpdateAccount};
use holdfast_auth::OperatorToken;
use holdfast_backend::{CallContext, Service};
use holdfast_bootstrap::{
    BootstrapError, DEMO_EMAIL, DEMO_KEY_DESCRIPTION, DEMO_NAME, DEMO_NAMESPACE, FirstStart, IDEMPOTENCY_KEY,
};

/// The service of this process.
pub(crate) struct InProcess<'a>(pub(crate) &'a Service);

impl FirstStart for InProcess<'_> {
    async fn create_demo(&self, operator: &OperatorToken) -> Result<String, BootstrapError> {
        let service = self.0;
        let context = || CallContext::new("first start").with_idempotency_key(Some(IDEMPOTENCY_KEY.to_owned()));
        let operator = service.authenticate(Some(operator.reveal().expose()), &context()).await;
        let operator = operator.map_err(rejected("the operator token"))?;
        let account = CreateAccount {
            email: DEMO_EMAIL.to_owned(),
            full_name: DEMO_NAME.to_owned(),
            max_number_of_namespaces: None,
        };
        let account = service.create_account(&operator, &context(), account).await.map_err(rejected("the account"))?;
        let limits = Some(LimitsPatch { max_requests_per_second: Some(0), ..LimitsPatch::default() });
        let change = UpdateAccount { limits, ..UpdateAccount::default() };
        let changed = service.update_account(&operator, &context(), &account.id, change).await;
        changed.map_err(rejected("the account's limits"))?;
        let key = CreateApiKey {
            description: Some(DEMO_KEY_DESCRIPTION.to_owned()),
            scopes: None,
            namespaces: None,
            expires_at: None,
        };
        let key = service.create_api_key(&operator, &context(), Some(&account.id), key).await;
        let key = key.map_err(rejected("the API key"))?.api_key;
        let tenant = service.authenticate(Some(&key), &context()).await.map_err(rejected("the API key"))?;
        let (name, durability) = (DEMO_NAMESPACE.to_owned(), Default::default());
        let namespace = CreateNamespace { name, description: None, durability };
        let created = service.create_namespace(&tenant, &context(), namespace).await;
        created.map_err(rejected("the namespace"))?;
        Ok(key)
    }
}

fn rejected(call: &'static str) -> impl FnOnce(ApiError) -> BootstrapError {
    move |error| BootstrapError::Rejected { call, code: error.code.name().to_owned(), detail: error.detail }
}
