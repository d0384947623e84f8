//! A window with the console in it: what a person can see and do there.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thirtyfour::{By, Key, WebDriver, WebElement};

use crate::chromium::Chromium;
use crate::env;

const CONDITION_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Written into the page when it is opened: gone when something was loaded anew.
const SET_PAGE_MARKER: &str = "window.isStillTheSamePage = true; return true";

/// The screen that shows a page.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// Whether the person prefers dark colours.
    pub is_dark: bool,
    /// Whether it is a phone.
    pub is_phone: bool,
}

impl Screen {
    /// A window on a desk, in the light.
    pub const DESKTOP: Self = Self { width: 1280, height: 800, is_dark: false, is_phone: false };
    /// A phone in the dark.
    pub const PHONE: Self = Self { width: 375, height: 760, is_dark: true, is_phone: true };
}

/// A window. Close it with [`Page::close`].
pub struct Page {
    /// There until it is closed.
    driver: Option<WebDriver>,
    _chromium: Chromium,
}

impl Page {
    /// Opens the console; none, said on standard error, where there is no browser.
    pub async fn open() -> Option<Self> {
        Self::open_at(env::server().address()).await
    }

    /// The same for the console of another service.
    pub async fn open_at(address: SocketAddr) -> Option<Self> {
        let Some(chromium) = Chromium::start() else {
            eprintln!("skipped: there is no Chromium with its driver here (Debian: chromium, chromium-driver)");
            return None;
        };
        let driver = chromium.open().await;
        let page = Self { driver: Some(driver), _chromium: chromium };
        page.set_screen(Screen::DESKTOP).await;
        page.driver().goto(format!("http://{address}/console")).await.expect("the page opens");
        page.wait_for("#key").await;
        Some(page)
    }

    /// The same, signed in.
    pub async fn signed_in(key: &str) -> Option<Self> {
        let page = Self::open().await?;
        page.sign_in(key).await;
        page.wait_for(".frame").await;
        page.script(SET_PAGE_MARKER, json!([])).await;
        Some(page)
    }

    /// Ends the browser.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn close(mut self) {
        if let Some(driver) = self.driver.take() {
            driver.quit().await.expect("the browser ends");
        }
    }

    fn driver(&self) -> &WebDriver {
        self.driver.as_ref().expect("whoever closes a page gives it away")
    }

    /// Types a key and presses Enter.
    pub async fn sign_in(&self, key: &str) {
        self.find("#key").await.clear().await.expect("the field can be cleared");
        self.type_into("#key", key).await;
        self.press(Key::Enter).await;
    }

    /// Goes to an address within the page, such as `#/ns/demo/locks`.
    pub async fn navigate(&self, hash: &str) {
        self.script("location.hash = arguments[0]", json!([hash])).await;
    }

    /// Loads the page anew, as F5 does.
    pub async fn reload(&self) {
        self.driver().refresh().await.expect("the page loads");
    }

    /// Whether nothing was loaded anew since the sign-in.
    pub async fn was_not_reloaded(&self) -> bool {
        self.script("return window.isStillTheSamePage === true", json!([])).await == json!(true)
    }

    /// Changes the screen.
    pub async fn set_screen(&self, screen: Screen) {
        let Screen { width, height, is_dark, is_phone } = screen;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if is_dark { "dark" } else { "light" };
        // Nothing moves, so that a picture is the same whenever it is taken.
        let features = json!([{"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Cuts the browser off from the network, or connects it again.
    pub async fn set_offline(&self, is_offline: bool) {
        let conditions = json!({"offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.devtools("Network.enable", json!({})).await;
        self.devtools("Network.emulateNetworkConditions", conditions).await;
    }

    async fn devtools(&self, method: &str, params: Value) {
        self.driver().cdp().send_raw(method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"));
    }

    /// Runs a script in the page and returns what it returns.
    pub async fn script(&self, script: &str, arguments: Value) -> Value {
        let arguments = arguments.as_array().expect("arguments are a list").clone();
        let ran = self.driver().execute(script, arguments).await.unwrap_or_else(|error| panic!("{script}: {error}"));
        ran.json().clone()
    }

    /// What can be read on the page, or in what a selector finds first.
    pub async fn text(&self, selector: &str) -> String {
        let found =
            self.script("return document.querySelector(arguments[0])?.innerText ?? ''", json!([selector])).await;
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a script returns something that is true, and returns it.
    pub async fn wait_until(&self, what: &str, script: &str, arguments: Value) -> Value {
        let deadline = Instant::now() + CONDITION_TIMEOUT;
        loop {
            let found = self.script(script, arguments.clone()).await;
            if !matches!(found, Value::Null | Value::Bool(false)) {
                return found;
            }
            if Instant::now() >= deadline {
                panic!("it never came to this: {what}; the page says:\n{}", self.text("body").await);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until something that can be seen is found.
    pub async fn wait_for(&self, selector: &str) {
        let script = "return document.querySelector(arguments[0])?.checkVisibility() ?? false";
        self.wait_until(selector, script, json!([selector])).await;
    }

    /// Waits until nothing is found any more.
    pub async fn wait_until_gone(&self, selector: &str) {
        self.wait_until(selector, "return document.querySelector(arguments[0]) === null", json!([selector])).await;
    }

    /// Waits until what a selector finds first says all of these.
    pub async fn wait_for_words(&self, selector: &str, words: &[&str]) {
        let script = "const text = document.querySelector(arguments[0])?.innerText ?? ''; \
                      return arguments[1].every((word) => text.includes(word))";
        self.wait_until(&format!("{selector} says {words:?}"), script, json!([selector, words])).await;
    }

    /// Waits until the texts of all that a selector finds are these.
    pub async fn wait_for_texts(&self, selector: &str, texts: &[&str]) {
        let script = "const found = [...document.querySelectorAll(arguments[0])].map((one) => one.innerText.trim()); \
                      return JSON.stringify(found) === JSON.stringify(arguments[1])";
        self.wait_until(&format!("{selector} are {texts:?}"), script, json!([selector, texts])).await;
    }

    async fn find(&self, selector: &str) -> WebElement {
        self.wait_for(selector).await;
        self.driver().find(By::Css(selector)).await.unwrap_or_else(|error| panic!("{selector}: {error}"))
    }

    /// Clicks on something as a mouse does: it has to be visible, and nothing may be over it.
    pub async fn click(&self, selector: &str) {
        self.find(selector).await.click().await.unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    /// Types into a field.
    pub async fn type_into(&self, selector: &str, text: &str) {
        let field = self.find(selector).await;
        field.send_keys(text).await.unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    /// Presses a key wherever the focus is.
    pub async fn press(&self, key: Key) {
        self.driver().action_chain().send_keys(key).perform().await.expect("the browser takes keys");
    }

    /// Writes a picture of what can be seen.
    pub async fn screenshot(&self, file: &Path) {
        let picture = self.driver().screenshot_as_png().await.expect("the browser draws");
        std::fs::write(file, picture).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Drop for Page {
    /// A driver that was not quit asks the browser to end and blocks the runtime that the answer has to come through.
    /// After a failed test the process of the browser is ended instead.
    fn drop(&mut self) {
        std::mem::forget(self.driver.take());
    }
}
