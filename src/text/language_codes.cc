#include "text/language_codes.h"

namespace kvasir {
namespace {

// From fairseq's dictionaries, as transformers has them too.
constexpr std::string_view kM2m[] = {
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br",  "bs", "ca", "ceb", "cs", "cy",
    "da", "de", "el", "en",  "es", "et", "fa", "ff", "fi", "fr",  "fy", "ga", "gd",  "gl", "gu",
    "ha", "he", "hi", "hr",  "ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja",  "jv", "ka",
    "kk", "km", "kn", "ko",  "lb", "lg", "ln", "lo", "lt", "lv",  "mg", "mk", "ml",  "mn", "mr",
    "ms", "my", "ne", "nl",  "no", "ns", "oc", "or", "pa", "pl",  "ps", "pt", "ro",  "ru", "sd",
    "si", "sk", "sl", "so",  "sq", "sr", "ss", "su", "sv", "sw",  "ta", "th", "tl",  "tn", "tr",
    "uk", "ur", "uz", "vi",  "wo", "xh", "yi", "yo", "zh", "zu",
};
constexpr std::string_view kWmt21[] = {
    "en", "ha", "is", "ja", "cs", "ru", "zh", "de",
};
constexpr std::string_view kNllb[] = {
    "ace_Arab", "ace_Latn", "acm_Arab", "acq_Arab", "aeb_Arab", "afr_Latn", "ajp_Arab", "aka_Latn",
    "amh_Ethi", "apc_Arab", "arb_Arab", "ars_Arab", "ary_Arab", "arz_Arab", "asm_Beng", "ast_Latn",
    "awa_Deva", "ayr_Latn", "azb_Arab", "azj_Latn", "bak_Cyrl", "bam_Latn", "ban_Latn", "bel_Cyrl",
    "bem_Latn", "ben_Beng", "bho_Deva", "bjn_Arab", "bjn_Latn", "bod_Tibt", "bos_Latn", "bug_Latn",
    "bul_Cyrl", "cat_Latn", "ceb_Latn", "ces_Latn", "cjk_Latn", "ckb_Arab", "crh_Latn", "cym_Latn",
    "dan_Latn", "deu_Latn", "dik_Latn", "dyu_Latn", "dzo_Tibt", "ell_Grek", "eng_Latn", "epo_Latn",
    "est_Latn", "eus_Latn", "ewe_Latn", "fao_Latn", "pes_Arab", "fij_Latn", "fin_Latn", "fon_Latn",
    "fra_Latn", "fur_Latn", "fuv_Latn", "gla_Latn", "gle_Latn", "glg_Latn", "grn_Latn", "guj_Gujr",
    "hat_Latn", "hau_Latn", "heb_Hebr", "hin_Deva", "hne_Deva", "hrv_Latn", "hun_Latn", "hye_Armn",
    "ibo_Latn", "ilo_Latn", "ind_Latn", "isl_Latn", "ita_Latn", "jav_Latn", "jpn_Jpan", "kab_Latn",
    "kac_Latn", "kam_Latn", "kan_Knda", "kas_Arab", "kas_Deva", "kat_Geor", "knc_Arab", "knc_Latn",
    "kaz_Cyrl", "kbp_Latn", "kea_Latn", "khm_Khmr", "kik_Latn", "kin_Latn", "kir_Cyrl", "kmb_Latn",
    "kon_Latn", "kor_Hang", "kmr_Latn", "lao_Laoo", "lvs_Latn", "lij_Latn", "lim_Latn", "lin_Latn",
    "lit_Latn", "lmo_Latn", "ltg_Latn", "ltz_Latn", "lua_Latn", "lug_Latn", "luo_Latn", "lus_Latn",
    "mag_Deva", "mai_Deva", "mal_Mlym", "mar_Deva", "min_Latn", "mkd_Cyrl", "plt_Latn", "mlt_Latn",
    "mni_Beng", "khk_Cyrl", "mos_Latn", "mri_Latn", "zsm_Latn", "mya_Mymr", "nld_Latn", "nno_Latn",
    "nob_Latn", "npi_Deva", "nso_Latn", "nus_Latn", "nya_Latn", "oci_Latn", "gaz_Latn", "ory_Orya",
    "pag_Latn", "pan_Guru", "pap_Latn", "pol_Latn", "por_Latn", "prs_Arab", "pbt_Arab", "quy_Latn",
    "ron_Latn", "run_Latn", "rus_Cyrl", "sag_Latn", "san_Deva", "sat_Beng", "scn_Latn", "shn_Mymr",
    "sin_Sinh", "slk_Latn", "slv_Latn", "smo_Latn", "sna_Latn", "snd_Arab", "som_Latn", "sot_Latn",
    "spa_Latn", "als_Latn", "srd_Latn", "srp_Cyrl", "ssw_Latn", "sun_Latn", "swe_Latn", "swh_Latn",
    "szl_Latn", "tam_Taml", "tat_Cyrl", "tel_Telu", "tgk_Cyrl", "tgl_Latn", "tha_Thai", "tir_Ethi",
    "taq_Latn", "taq_Tfng", "tpi_Latn", "tsn_Latn", "tso_Latn", "tuk_Latn", "tum_Latn", "tur_Latn",
    "twi_Latn", "tzm_Tfng", "uig_Arab", "ukr_Cyrl", "umb_Latn", "urd_Arab", "uzn_Latn", "vec_Latn",
    "vie_Latn", "war_Latn", "wol_Latn", "xho_Latn", "ydd_Hebr", "yor_Latn", "yue_Hant", "zho_Hans",
    "zho_Hant", "zul_Latn",
};
// One language a row. "ns" is M2M-100's, not ISO's.
constexpr std::string_view kSame[] = {
    "af afr",     "ak aka",     "am amh",     "ar ara arb", "as asm",     "ay aym ayr",
    "az aze azj", "ba bak",     "be bel",     "bg bul",     "bm bam",     "bn ben",
    "bo bod",     "br bre",     "bs bos",     "ca cat",     "cs ces",     "cy cym",
    "da dan",     "de deu",     "dz dzo",     "ee ewe",     "el ell",     "en eng",
    "eo epo",     "es spa",     "et est ekk", "eu eus",     "fa fas pes", "ff ful fuv",
    "fi fin",     "fj fij",     "fo fao",     "fr fra",     "fy fry",     "ga gle",
    "gd gla",     "gl glg",     "gn grn",     "gu guj",     "ha hau",     "he heb",
    "hi hin",     "hr hrv",     "ht hat",     "hu hun",     "hy hye",     "id ind",
    "ig ibo",     "is isl",     "it ita",     "ja jpn",     "jv jav",     "ka kat",
    "kg kon",     "ki kik",     "kk kaz",     "km khm",     "kn kan",     "ko kor",
    "kr kau knc", "ks kas",     "ku kur kmr", "ky kir",     "lb ltz",     "lg lug",
    "li lim",     "ln lin",     "lo lao",     "lt lit",     "lv lav lvs", "mg mlg plt",
    "mi mri",     "mk mkd",     "ml mal",     "mn mon khk", "mr mar",     "ms msa zsm",
    "mt mlt",     "my mya",     "ne nep npi", "nl nld",     "nn nno",     "no nor nob nb",
    "nso ns",     "ny nya",     "oc oci",     "om orm gaz", "or ori ory", "pa pan",
    "pl pol",     "ps pus pbt", "pt por",     "qu que quy", "rn run",     "ro ron",
    "ru rus",     "rw kin",     "sa san",     "sc srd",     "sd snd",     "sg sag",
    "si sin",     "sk slk",     "sl slv",     "sm smo",     "sn sna",     "so som",
    "sq sqi als", "sr srp",     "ss ssw",     "st sot",     "su sun",     "sv swe",
    "sw swa swh", "ta tam",     "te tel",     "tg tgk",     "th tha",     "ti tir",
    "tk tuk",     "tl tgl fil", "tn tsn",     "tr tur",     "ts tso",     "tt tat",
    "tw twi",     "ug uig",     "uk ukr",     "ur urd",     "uz uzb uzn", "vi vie",
    "wo wol",     "xh xho",     "yi yid ydd", "yo yor",     "zh zho",     "zu zul",
};

}  // namespace

std::span<const std::string_view> M2mLanguages() { return kM2m; }
std::span<const std::string_view> Wmt21Languages() { return kWmt21; }
std::span<const std::string_view> NllbLanguages() { return kNllb; }

std::string_view CodesLike(std::string_view code) {
  for (const std::string_view row : kSame) {
    for (std::string_view rest = row; !rest.empty();) {
      const size_t end = rest.find(' ');
      if (rest.substr(0, end) == code) return row;
      rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    }
  }
  return {};
}

}  // namespace kvasir
