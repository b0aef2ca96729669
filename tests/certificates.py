"""A certificate authority and what it signs, made by openssl for a test."""

import datetime
import pathlib
import subprocess


class Authority:
    """Writes PEM files into a folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.ca = str(self.folder / "ca.crt")
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                     "-subj", "/CN=authority of a test", "-keyout", self.folder / "ca.key", "-out", self.ca)
        (self.folder / "index").touch()
        (self.folder / "index.attr").write_text("unique_subject = no\n")
        (self.folder / "ca.conf").write_text(f"""
[ca]
default_ca = own
[own]
database = {self.folder}/index
new_certs_dir = {self.folder}
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
""")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                       timeout=60)

    def sign(self, name, names="DNS:localhost,IP:127.0.0.1", begins_h=-2, ends_h=24 * 90):
        """(certificate, key), valid from `begins_h` to `ends_h` hours from now."""
        files = [str(self.folder / f"{name}.{kind}") for kind in ("crt", "key", "csr")]
        certificate, key, request = files
        now = datetime.datetime.now(datetime.timezone.utc)
        begins, ends = ((now + datetime.timedelta(hours=hours)).strftime("%Y%m%d%H%M%SZ") for hours in (begins_h, ends_h))
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                     "-addext", f"subjectAltName={names}", "-keyout", key, "-out", request)
        self.openssl("ca", "-batch", "-notext", "-config", self.folder / "ca.conf", "-cert", self.ca, "-keyfile",
                     self.folder / "ca.key", "-in", request, "-out", certificate, "-startdate", begins, "-enddate", ends)
        return certificate, key
