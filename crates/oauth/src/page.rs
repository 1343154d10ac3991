//! The pages people see: the question, and why there is none. No script, nothing from elsewhere, and every text of a stranger
//! is escaped. What a browser may do with a page is in its Content-Security-Policy.

use std::fmt::Write as _;

use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::redirect::{Place, RedirectUri};
use crate::server::AUTHORIZE;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#c8ccd2;--soft:#5a6472;--strong:#1f5fd6;--bad:#b3261e}\
@media(prefers-color-scheme:dark){:root{--line:#3c434d;--soft:#a3adba;--strong:#7aa7ff;--bad:#ff8a80}}\
body{font:16px/1.5 system-ui,sans-serif;margin:0;display:grid;min-height:100vh;place-items:center}\
main{box-sizing:border-box;width:min(30rem,100%);padding:2rem 1.5rem}\
h1{font-size:1.35rem;line-height:1.3;overflow-wrap:anywhere}\
.to{border:1px solid var(--line);border-radius:.5rem;padding:.75rem 1rem;overflow-wrap:anywhere}\
.soft{color:var(--soft);font-size:.9rem}.bad{color:var(--bad)}\
label{display:block;font-weight:600;margin-top:1.25rem}\
input{box-sizing:border-box;width:100%;font:inherit;padding:.6rem;margin:.25rem 0 1rem;border:1px solid var(--line);border-radius:.4rem}\
button{font:inherit;padding:.6rem 1.2rem;border-radius:.4rem;border:1px solid var(--line);margin-right:.5rem}\
button.yes{background:var(--strong);border-color:var(--strong);color:Canvas;font-weight:600}";

/// Text for between tags and inside double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// `asks`: the page has our form. Chromium holds every hop of a form's answer to `form-action`, and clients hop on to schemes
/// of their own, so nothing is said about it there.
fn page(status: StatusCode, title: &str, body: &str, asks: bool) -> Response {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    );
    let style = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let form = if asks { "" } else { " form-action 'none';" };
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}';{form} frame-ancestors 'none'; base-uri 'none'"
    );
    let mut response = (status, html).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    match HeaderValue::try_from(policy) {
        Ok(policy) => headers.insert(CONTENT_SECURITY_POLICY, policy),
        // A redirect URI has no character that a header could not have; if it had, there would be no page.
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    response
}

/// The question.
pub(crate) struct Question<'a> {
    pub(crate) client_name: &'a str,
    pub(crate) redirect: RedirectUri<'a>,
    pub(crate) sealed: &'a str,
    /// Why it is asked again.
    pub(crate) again: Option<&'a str>,
}

impl Question<'_> {
    pub(crate) fn into_response(self, status: StatusCode) -> Response {
        let name = escape(self.client_name);
        let place = escape(&self.redirect.shown());
        let to = match self.redirect.place() {
            Place::Site => format!("The connection goes to the web site <strong>{place}</strong>."),
            Place::Loopback => {
                format!("The connection goes to a program on this computer, <strong>{place}</strong>.")
            }
            Place::Program => {
                format!("The connection goes to a program on this device, <strong>{place}</strong>.")
            }
        };
        let mut body = format!(
            "<h1>Let “{name}” use your sandboxes?</h1><p class=\"to\">{to} The name above is what it calls itself; \
             nobody has checked it.</p><p>It will be able to do everything that the tools of Superserve can do with your API \
             key: create, use and delete sandboxes. Go on only if you have just started this yourself.</p>"
        );
        let (described, invalid) = match self.again {
            Some(why) => {
                let _a_string_takes_everything =
                    write!(body, "<p class=\"bad\" role=\"alert\" id=\"why\">{}</p>", escape(why));
                (" why", " aria-invalid=\"true\"")
            }
            None => ("", ""),
        };
        let _a_string_takes_everything = write!(
            body,
            "<form method=\"post\" action=\"{AUTHORIZE}\" autocomplete=\"off\">\
             <input type=\"hidden\" name=\"request\" value=\"{sealed}\">\
             <label for=\"key\">API key</label>\
             <input id=\"key\" name=\"api_key\" type=\"password\" required maxlength=\"256\" autocomplete=\"off\" \
             spellcheck=\"false\" autocapitalize=\"none\" aria-describedby=\"about{described}\"{invalid}>\
             <button class=\"yes\" name=\"decision\" value=\"allow\">Allow</button>\
             <button name=\"decision\" value=\"deny\" formnovalidate>Cancel</button>\
             <p class=\"soft\" id=\"about\">The application does not get the key, and no copy of it is kept. \
             <code>superserve key grants</code> shows what is connected; <code>superserve key revoke</code> ends it.</p></form>",
            sealed = escape(self.sealed),
        );
        page(status, "Connect to Superserve", &body, true)
    }
}

/// Why there is no question. A link is offered, never followed by itself: whoever registers may name any site, and this one
/// must not send people there.
pub(crate) fn problem(status: StatusCode, what: &str, back: Option<(&RedirectUri<'_>, &str)>) -> Response {
    let mut body = format!(
        "<h1>This connection cannot be made</h1><p class=\"bad\" role=\"alert\">{}</p>",
        escape(what)
    );
    match back {
        Some((redirect, link)) => {
            let _a_string_takes_everything = write!(
                body,
                "<p>The application that sent you here made a mistake. You may <a href=\"{}\" rel=\"noreferrer\">tell it so, \
                 at {}</a>, or close this page.</p>",
                escape(link),
                escape(&redirect.shown())
            );
        }
        None => body.push_str("<p>Go back to the application and start again. You may close this page.</p>"),
    }
    page(status, "Superserve", &body, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        assert_eq!(escape("<script>\"'&"), "&lt;script&gt;&quot;&#39;&amp;");
    }
}
