"""Load the kernel of an installed wheel without importing torch, and call it: `python tests/wheel/kernel.py`."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

folder = Path(sysconfig.get_path("platlib")) / "stackattn/ops/cpp"
files = [path for path in folder.glob("_kernel*") if path.suffix in (".so", ".pyd")]
if len(files) != 1:
    sys.exit(f"{folder}: expected one file _kernel*.so or *.pyd, found {[path.name for path in files] or 'none'}")
spec = importlib.util.spec_from_file_location("_kernel", files[0])
assert spec is not None
assert spec.loader is not None
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
print(files[0].name, "runs", kernel.name())
