"""What the figures were measured on: no host names, nothing that identifies a person."""

import os
import platform
import re
from pathlib import Path

__all__ = ["describe", "label"]


def cpu_model() -> str:
    """Returns the name of the processor."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def label() -> str:
    """Returns a name for machines of this kind, fit for a folder."""
    text = f"{cpu_model()} {os.cpu_count()} cores".lower()
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", text)).strip("-")


def describe() -> dict[str, str]:
    """Returns what else can change a figure."""
    facts = {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "harness python": platform.python_version(),
    }
    try:
        if re.search(r"^flags\s*:.*\bhypervisor\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            facts["virtual machine"] = "yes"
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        facts["governor"] = governor.read_text().strip() if governor.exists() else "unknown"
    except OSError:
        pass
    return facts
