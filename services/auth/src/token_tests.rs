use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::*;
use crate::{ClusterSecret, KeyRotation};

const NOW: u64 = 1_800_000_000_000;
const LIFE: Duration = Duration::from_secs(600);

fn keys(secret: &str) -> SigningKeys {
    SigningKeys::new(&ClusterSecret::from_hex(&secret.repeat(32)).unwrap(), KeyRotation::default()).unwrap()
}

fn principal() -> AccountPrincipal {
    AccountPrincipal {
        account: AccountId(7),
        key_id: "abcdefgh23456789".to_owned(),
        scopes: Scopes::LOCKS_READ.union(Scopes::LOCKS_WRITE),
        namespaces: Some(["a b".to_owned(), "c".to_owned()].into()),
        expires_at_ms: None,
        credential_kind: CredentialKind::Key,
    }
}

fn issue(keys: &SigningKeys) -> String {
    keys.issue_token(&principal(), LIFE, NOW).unwrap().0.expose().to_owned()
}

fn part(text: &str, at: usize) -> Value {
    let part = text.split('.').nth(at).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

fn with_part(text: &str, at: usize, value: &Value) -> String {
    let mut parts: Vec<String> = text.split('.').map(str::to_owned).collect();
    parts[at] = URL_SAFE_NO_PAD.encode(value.to_string());
    parts.join(".")
}

#[test]
fn a_token_tells_every_gateway_who_presents_it() {
    let (token, expires_at_ms) = keys("5a").issue_token(&principal(), LIFE, NOW + 700).unwrap();
    assert_eq!(expires_at_ms, NOW + 600_000);
    let verified = keys("5a").verify_token(token.expose(), NOW + 599_999).unwrap();
    let credential_kind = CredentialKind::Token { issued_at_ms: NOW };
    assert_eq!(verified, AccountPrincipal { expires_at_ms: Some(expires_at_ms), credential_kind, ..principal() });
    assert!(keys("5a").verify_token(token.expose(), NOW + 600_000).is_err());
}

#[test]
fn a_token_outlives_neither_an_hour_nor_its_key_nor_its_signature() {
    let end = |keys: &SigningKeys, principal: &AccountPrincipal| {
        keys.issue_token(principal, Duration::from_secs(86_400), NOW).unwrap().1 - NOW
    };
    assert_eq!(end(&keys("5a"), &principal()), 3_600_000);
    assert_eq!(end(&keys("5a"), &AccountPrincipal { expires_at_ms: Some(NOW + 5_500), ..principal() }), 5_000);
    let secret = ClusterSecret::from_hex(&"5a".repeat(32)).unwrap();
    let plan = KeyRotation { period: Duration::from_secs(60), generation: 0 };
    assert_eq!(end(&SigningKeys::new(&secret, plan).unwrap(), &principal()), 60_000);
}

#[test]
fn another_clusters_token_and_one_of_a_key_that_was_rotated_out_are_refused() {
    let token = issue(&keys("5a"));
    assert!(keys("5b").verify_token(&token, NOW).is_err());
    // The token never expires here, so that only the rotation can end it.
    let keys = keys("5a");
    let mut claims = part(&token, 1);
    claims["exp"] = json!(u64::MAX / 2_000);
    let endless = keys.sign(TOKEN_TYPE, &claims, NOW).unwrap();
    let period_ms = u64::try_from(KeyRotation::default().period.as_millis()).unwrap();
    assert!(keys.verify_token(&endless, NOW + period_ms).is_ok());
    assert!(keys.verify_token(&endless, NOW + 2 * period_ms).is_err());
    assert!(keys.verify_token(&endless, NOW - period_ms).is_ok(), "the key of the next period is known already");
}

#[test]
fn changed_claims_heads_and_signatures_are_refused() {
    let keys = keys("5a");
    let token = issue(&keys);
    let (head, claims) = (part(&token, 0), part(&token, 1));
    for (field, value) in [("sub", json!("0000000000000008")), ("scope", json!("account:admin")), ("exp", json!(0))] {
        let mut changed = claims.clone();
        changed[field] = value;
        assert!(keys.verify_token(&with_part(&token, 1, &changed), NOW).is_err(), "{field}");
    }
    for (field, value) in
        [("alg", json!("none")), ("alg", json!("HS256")), ("kid", json!("x")), ("typ", json!("JWT")), ("kid", json!(1))]
    {
        let mut changed = head.clone();
        changed[field] = value.clone();
        assert!(keys.verify_token(&with_part(&token, 0, &changed), NOW).is_err(), "{field} {value}");
    }
    let unsigned = &token[..=token.rfind('.').unwrap()];
    assert!(keys.verify_token(unsigned, NOW).is_err());
    let mut none = head;
    none["alg"] = json!("none");
    assert!(keys.verify_token(&with_part(unsigned, 0, &none), NOW).is_err());
}

#[test]
fn a_public_key_is_no_secret_to_sign_with() {
    let keys = keys("5a");
    let token = issue(&keys);
    let public = serde_json::to_value(keys.jwks(NOW).unwrap()).unwrap()["keys"][1].clone();
    let x = public["x"].as_str().unwrap();
    for secret in [x.as_bytes().to_vec(), URL_SAFE_NO_PAD.decode(x).unwrap()] {
        let mut header = Header::new(Algorithm::HS256);
        header.typ = Some(TOKEN_TYPE.to_owned());
        header.kid = public["kid"].as_str().map(str::to_owned);
        let forged = jsonwebtoken::encode(&header, &part(&token, 1), &EncodingKey::from_secret(&secret)).unwrap();
        assert!(keys.verify_token(&forged, NOW).is_err());
    }
}

#[test]
fn what_is_signed_but_not_understood_is_refused() {
    let keys = keys("5a");
    let claims = part(&issue(&keys), 1);
    for (field, value) in [
        ("scope", json!("locks:read locks:all")),
        ("scope", json!("")),
        ("sub", json!("7")),
        ("aud", json!("another")),
        ("iss", json!("another")),
    ] {
        let mut changed = claims.clone();
        changed[field] = value;
        let signed = keys.sign(TOKEN_TYPE, &changed, NOW).unwrap();
        assert!(keys.verify_token(&signed, NOW).is_err(), "{field}");
    }
    let too_long = AccountPrincipal { namespaces: Some(vec!["n".repeat(MAX_TOKEN_BYTES)].into()), ..principal() };
    let (token, _) = keys.issue_token(&too_long, LIFE, NOW).unwrap();
    assert!(keys.verify_token(token.expose(), NOW).is_err());
}

proptest::proptest! {
    #[test]
    fn no_cut_or_flipped_byte_passes(at in 0_usize..1_000, flip in 1_u8..128) {
        let keys = keys("5a");
        let token = issue(&keys);
        let at = at % token.len();
        proptest::prop_assert!(keys.verify_token(&token[..at], NOW).is_err());
        let mut bytes = token.clone().into_bytes();
        bytes[at] ^= flip;
        // The last letter of a part may carry bits without a meaning.
        if let Ok(changed) = String::from_utf8(bytes)
            && let Ok(verified) = keys.verify_token(&changed, NOW)
        {
            proptest::prop_assert_eq!(verified.account, AccountId(7));
            proptest::prop_assert_eq!(verified, keys.verify_token(&token, NOW).unwrap());
        }
    }
}
