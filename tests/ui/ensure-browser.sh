#!/bin/sh
# The page tests need a real Chromium. Installs Debian's where it is missing and that is allowed.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The page tests need Chromium on PATH (chromium, chromium-browser or google-chrome): install it, then run make test again." >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then as_root="sudo"; fi
echo "Installing Chromium for the page tests"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
