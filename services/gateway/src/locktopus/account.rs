//! The account of all Locktopus clients.

use std::str::FromStr;

use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::AccountId;

use super::LocktopusServer;

/// The account that a first start creates.
const DEMO_EMAIL: &str = "demo@example.com";
/// Digits of an id in hex.
const HEX_DIGITS: usize = 16;

/// An account as the flag of a process names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocktopusAccount {
    /// By its id.
    Id(AccountId),
    /// The account that a first start creates, by its e-mail.
    Demo,
}

/// The text names no account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an account is `demo`, an id of 16 hex digits, or an id of more than 16 decimal digits")]
pub(crate) struct MalformedLocktopusAccount;

impl FromStr for LocktopusAccount {
    type Err = MalformedLocktopusAccount;

    fn from_str(text: &str) -> Result<Self, MalformedLocktopusAccount> {
        let is_decimal = text.len() > HEX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_hex = text.len() == HEX_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = match text {
            "demo" => return Ok(Self::Demo),
            _ if is_hex => u64::from_str_radix(text, 16),
            _ if is_decimal => text.parse(),
            _ => return Err(MalformedLocktopusAccount),
        };
        id.map(|id| Self::Id(AccountId(id))).map_err(|_| MalformedLocktopusAccount)
    }
}

impl LocktopusServer {
    /// Returns the account's id.
    pub(super) async fn account_id(&self, context: &CallContext) -> ApiResult<AccountId> {
        let look_up = || async {
            match self.account {
                LocktopusAccount::Id(id) => Ok(id),
                LocktopusAccount::Demo => self.find_demo(context).await,
            }
        };
        self.cached_account_id.get_or_try_init(look_up).await.copied()
    }

    /// Returns a caller with all permissions of the account on locks and namespaces.
    pub(super) async fn authenticate(&self, context: &CallContext) -> ApiResult<AuthContext> {
        let id = self.account_id(context).await?;
        self.service.authenticate_trusted(&id.to_string(), context).await
    }

    async fn find_demo(&self, context: &CallContext) -> ApiResult<AccountId> {
        self.service.find_account_id(DEMO_EMAIL, context).await?.ok_or_else(|| {
            let detail = format!("there is no account {DEMO_EMAIL}; name another with --locktopus-account");
            ApiError::new(Code::AccountNotFound, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_named_as_elsewhere_or_is_the_demo_account() {
        let parse = |text: &str| text.parse::<LocktopusAccount>();
        assert_eq!(parse("demo"), Ok(LocktopusAccount::Demo));
        let id = LocktopusAccount::Id(AccountId(17_376_851_231_650_125_672));
        assert_eq!(parse("17376851231650125672"), Ok(id));
        assert_eq!(parse("f12716db48fd8f68"), Ok(LocktopusAccount::Id(AccountId(0xf127_16db_48fd_8f68))));
        for wrong in
            ["", "Demo", "1", "f12716db48fd8f6", "f12716db48fd8f6g", "99999999999999999999", "-000000000000000001"]
        {
            assert_eq!(parse(wrong), Err(MalformedLocktopusAccount), "{wrong}");
        }
    }
}
