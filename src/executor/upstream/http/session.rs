//! What one link has of its upstream's session: id, negotiated version, affinity cookies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use reqwest::cookie::{CookieStore, Jar};
use reqwest::header::{COOKIE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use reqwest::{Response, Url};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// An upstream that sets more cookies than this, in bytes of the header that returns them, loses them all.
const MOST_COOKIES: usize = 16 << 10;

#[derive(Default)]
pub(super) struct Session(Mutex<State>);

#[derive(Default)]
struct State {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    cookies: Jar,
    /// Its era has none.
    is_none: bool,
    /// The upstream has said that it does not know the session any more.
    is_over: bool,
}

impl Session {
    /// That of an era without sessions: it keeps cookies alone.
    pub(super) fn none() -> Self {
        Self(Mutex::new(State { is_none: true, ..State::default() }))
    }

    /// The headers that each request has.
    pub(super) fn headers(&self, url: &Url) -> HeaderMap {
        let state = self.lock();
        let cookies = state.cookies.cookies(url);
        let all = [(SESSION_ID, state.id.clone()), (VERSION, state.version.clone()), (COOKIE, cookies)];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Keeps what a response gives: cookies always, a session id until the version is negotiated.
    pub(super) fn take(&self, response: &Response) {
        let mut state = self.lock();
        let headers = response.headers();
        if headers.contains_key(SET_COOKIE) {
            state.cookies.set_cookies(&mut headers.get_all(SET_COOKIE).iter(), response.url());
            if state.cookies.cookies(response.url()).is_some_and(|cookies| cookies.len() > MOST_COOKIES) {
                tracing::warn!("an upstream sets too many cookies; all of them are forgotten");
                state.cookies = Jar::default();
            }
        }
        if !state.is_none
            && state.version.is_none()
            && let Some(id) = headers.get(SESSION_ID)
        {
            let mut id = id.clone();
            id.set_sensitive(true);
            state.id = Some(id);
        }
    }

    /// From now on requests carry the version, and the session id stays.
    pub(super) fn negotiated(&self, version: &str) {
        self.lock().version = HeaderValue::from_str(version).ok();
    }

    /// Goes on with a session that was opened before.
    pub(super) fn resume(&self, id: &str) {
        let id = HeaderValue::from_str(id).ok().map(|mut id| {
            id.set_sensitive(true);
            id
        });
        self.lock().id = id;
    }

    pub(super) fn id(&self) -> Option<String> {
        self.lock().id.as_ref()?.to_str().ok().map(str::to_owned)
    }

    pub(super) fn has_id(&self) -> bool {
        self.lock().id.is_some()
    }

    pub(super) fn set_over(&self) {
        self.lock().is_over = true;
    }

    /// Whether there is a session that the upstream can be told to end.
    pub(super) fn is_open(&self) -> bool {
        let state = self.lock();
        state.id.is_some() && !state.is_over
    }

    /// A poisoned lock is taken all the same: each of its parts is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
