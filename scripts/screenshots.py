"""Pictures of pages in Chromium, to look at them: light, dark, and at the width of a phone.

python scripts/screenshots.py FOLDER PAGE.html ...      needs playwright (extra 'test') and a Chromium on the PATH
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


def main(folder: Path, pages: list[Path]) -> None:
    """``FOLDER/NAME-light.png`` and so on; names are those of the files with their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    )
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for look, settings in LOOKS.items():
            page = browser.new_page(**settings)
            page.on("requestfailed", lambda request: print("failed:", request.url))
            page.on("pageerror", lambda error: print("error:", error))
            for path in pages:
                page.goto(path.resolve().as_uri())
                page.wait_for_timeout(1200)  # the tabs of a site fade in
                wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
                print(f"{look} {path}{': wider than the screen' if wide else ''}")
                page.screenshot(
                    path=folder / f"{path.parent.name}-{path.stem}-{look}.png", full_page=True
                )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
